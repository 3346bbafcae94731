//! Frames of requests: the header in either serialisation, field by field, and the body.

const PYTHON: u8 = 3;

/// The fields of every header.
pub struct Head<'a> {
    /// The request code.
    pub code: i32,
    /// Bits that say what the frame is.
    pub flag: i32,
    /// The number that its answer is found by.
    pub opaque: i32,
    /// The version of our protocol.
    pub version: i16,
    /// A text for the receiver's log.
    pub remark: Option<&'a str>,
    /// Whether the header is JSON; else it is in RocketMQ's own serialisation.
    pub json: bool,
}

/// A frame that is being written.
pub struct Frame<'a> {
    head: &'a Head<'a>,
    out: Vec<u8>,
    fields: usize,
    ext: usize,
}

impl<'a> Frame<'a> {
    /// Begin a frame.
    pub fn new(head: &'a Head<'a>, room: usize) -> Self {
        let mut out = Vec::with_capacity(room);
        out.extend_from_slice(&[0; 8]);
        let mut frame = Frame { head, out, fields: 0, ext: 0 };
        if head.json {
            frame.add(br#"{"code":"#);
            frame.number(head.code);
        } else {
            frame.rocketmq_head();
        }
        frame
    }

    fn add(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    fn number(&mut self, number: i32) {
        self.add(number.to_string().as_bytes());
    }

    #[allow(clippy::cast_possible_truncation)] // codes above 32767 truncate, as in the original
    fn rocketmq_head(&mut self) {
        let (head, remark) = (self.head, self.head.remark.unwrap_or(""));
        self.add(&(head.code as i16).to_be_bytes());
        self.out.push(PYTHON);
        self.add(&head.version.to_be_bytes());
        self.add(&head.opaque.to_be_bytes());
        self.add(&head.flag.to_be_bytes());
        self.length(remark.len());
        self.add(remark.as_bytes());
        self.ext = self.out.len();
        self.length(0);
    }

    fn length(&mut self, length: usize) {
        let [_, _, _, _, a, b, c, d] = length.to_be_bytes();
        self.add(&[a, b, c, d]);
    }

    /// Write one field. `None`: its name is too long.
    pub fn field(&mut self, name: &str, value: &str) -> Option<()> {
        if self.head.json {
            self.add(if self.fields == 0 { br#","extFields":{"#.as_slice() } else { b"," });
            self.text(name);
            self.out.push(b':');
            self.text(value);
        } else {
            self.add(&i16::try_from(name.len()).ok()?.to_be_bytes());
            self.add(name.as_bytes());
            self.length(value.len());
            self.add(value.as_bytes());
        }
        self.fields = self.fields.saturating_add(1);
        Some(())
    }

    /// Write a text of JSON.
    fn text(&mut self, text: &str) {
        self.out.push(b'"');
        let mut rest = text.as_bytes();
        while let Some(at) = rest.iter().position(|b| matches!(b, b'"' | b'\\' | 0..=0x1F)) {
            let (plain, odd) = rest.split_at(at);
            self.add(plain);
            let Some((byte, behind)) = odd.split_first() else { break };
            match byte {
                b'"' => self.add(b"\\\""),
                b'\\' => self.add(b"\\\\"),
                8 => self.add(b"\\b"),
                9 => self.add(b"\\t"),
                10 => self.add(b"\\n"),
                12 => self.add(b"\\f"),
                13 => self.add(b"\\r"),
                byte => self.add(format!("\\u{byte:04x}").as_bytes()),
            }
            rest = behind;
        }
        self.add(rest);
        self.out.push(b'"');
    }

    /// Return the whole frame. `None`: it is too long.
    pub fn end(mut self, body: &[u8]) -> Option<Vec<u8>> {
        if self.head.json {
            self.json_end();
        } else {
            let size = self.out.len().checked_sub(self.ext)?.checked_sub(4)?;
            let size = u32::try_from(size).ok()?.to_be_bytes();
            *self.out.get_mut(self.ext..)?.first_chunk_mut::<4>()? = size;
        }
        let head = self.out.len().checked_sub(8)?;
        let [0, 0, 0, 0, 0, h1, h2, h3] = head.to_be_bytes() else { return None };
        self.add(body);
        let [a, b, c, d] = i32::try_from(self.out.len().checked_sub(4)?).ok()?.to_be_bytes();
        *self.out.first_chunk_mut::<8>()? = [a, b, c, d, u8::from(!self.head.json), h1, h2, h3];
        Some(self.out)
    }

    fn json_end(&mut self) {
        let head = self.head;
        if self.fields > 0 {
            self.out.push(b'}');
        }
        self.add(br#","flag":"#);
        self.number(head.flag);
        self.add(br#","language":"PYTHON","opaque":"#);
        self.number(head.opaque);
        if let Some(remark) = head.remark {
            self.add(br#","remark":"#);
            self.text(remark);
        }
        self.add(br#","serializeTypeCurrentRPC":"JSON","version":"#);
        self.number(i32::from(head.version));
        self.out.push(b'}');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::cut;
    use proptest::prelude::*;

    #[test]
    fn a_text_of_json_has_its_marks_escaped() {
        let head = Head { code: 1, flag: 0, opaque: 2, version: 3, remark: None, json: true };
        let mut frame = Frame::new(&head, 0);
        frame.field("a", "x\"\\\n\u{1}é");
        let found = frame.end(b"body").unwrap_or_default();
        let json = r#"{"code":1,"extFields":{"a":"x\"\\\n\u0001é"},"flag":0,"language":"PYTHON","opaque":2,"#;
        assert!(String::from_utf8_lossy(&found).contains(json));
        assert!(found.ends_with(b"}body"));
    }

    proptest! {
        #[test]
        fn any_texts_become_one_whole_frame(
            fields in proptest::collection::vec((any::<String>(), any::<String>()), 0..5), remark in any::<Option<String>>(),
            json in any::<bool>(), body in proptest::collection::vec(any::<u8>(), 0..50),
        ) {
            let head = Head { code: -1, flag: 1, opaque: 2, version: 3, remark: remark.as_deref(), json };
            let mut frame = Frame::new(&head, 0);
            for (name, value) in &fields {
                prop_assert!(frame.field(name, value).is_some());
            }
            let found = frame.end(&body).unwrap_or_default();
            let mut frames = Vec::new();
            let rest = cut(&found, 1 << 24, 1 << 20, |frame| frames.push(frame));
            prop_assert_eq!((rest.used, rest.wrong, frames.len()), (found.len(), None, 1));
            prop_assert!(frames.iter().all(|frame| frame.serialization == u8::from(!json) && found.len() - frame.body == body.len()));
        }
    }
}
