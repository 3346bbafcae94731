//! Frames: a run of received bytes cut where its frames lie.

/// One whole frame: places in the bytes that were cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// How its header is written: 0 JSON, 1 ROCKETMQ.
    pub serialization: u8,
    /// Where its header begins.
    pub start: usize,
    /// Where its body begins.
    pub body: usize,
    /// Where it ends.
    pub end: usize,
}

/// The content of a place.
pub enum Next {
    /// A whole frame.
    Whole(Frame),
    /// The beginning of one that needs so many bytes in all, 8 until its length is known.
    Part(usize),
    /// Something that no frame begins with, in words.
    Wrong(String),
}

/// The facts about a run of bytes beside its frames.
pub struct Rest {
    /// How many bytes the frames take.
    pub used: usize,
    /// How many bytes the next frame needs in all.
    pub wanted: usize,
    /// The fault of the next frame, if it has one.
    pub wrong: Option<String>,
}

/// Look at what begins at a place.
pub fn next(data: &[u8], at: usize, frame_max: i64, header_max: i64) -> Next {
    let Some((head, _)) = data.get(at..).and_then(|rest| rest.split_first_chunk::<8>()) else {
        return Next::Part(8);
    };
    let [a, b, c, d, serialization, e, f, g] = *head;
    let total = i64::from(i32::from_be_bytes([a, b, c, d]));
    let header = i64::from(u32::from_be_bytes([0, e, f, g]));
    if total < 4 || total.saturating_add(4) > frame_max {
        return Next::Wrong(format!("frame length {total} is not between 4 and {}", frame_max.saturating_sub(4)));
    }
    if header > total.saturating_sub(4) || header > header_max {
        return Next::Wrong(format!("header length {header} does not fit a frame of {total} bytes"));
    }
    let (total, header) = (total.unsigned_abs() as usize, header.unsigned_abs() as usize);
    let end = at.saturating_add(4).saturating_add(total);
    if end > data.len() {
        return Next::Part(total.saturating_add(4));
    }
    let start = at.saturating_add(8);
    Next::Whole(Frame { serialization, start, body: start.saturating_add(header), end })
}

/// Cut a run of bytes into whole frames, each given to `frame`.
pub fn cut(data: &[u8], frame_max: i64, header_max: i64, mut frame: impl FnMut(Frame)) -> Rest {
    let mut used = 0;
    loop {
        match next(data, used, frame_max, header_max) {
            Next::Whole(found) => {
                used = found.end;
                frame(found);
            }
            Next::Part(wanted) => return Rest { used, wanted, wrong: None },
            Next::Wrong(text) => return Rest { used, wanted: 8, wrong: Some(text) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_cut_where_their_lengths_say(
            data in proptest::collection::vec(prop_oneof![4 => Just(0u8), 2 => 0u8..30, 1 => any::<u8>()], 0..400),
            frame_max in 0i64..300, header_max in 0i64..100,
        ) {
            let mut frames = Vec::new();
            let rest = cut(&data, frame_max, header_max, |frame| frames.push(frame));
            let mut at = 0;
            for frame in &frames {
                prop_assert_eq!(frame.start, at + 8);
                prop_assert!(frame.start <= frame.body && frame.body <= frame.end && frame.end <= data.len());
                at = frame.end;
            }
            prop_assert_eq!(rest.used, at);
            prop_assert!(rest.wrong.is_some() || rest.wanted > data.len() - at);
        }
    }
}
