//! Answers that most requests get: whole frames.

/// The common part of all answers of one queue.
pub struct Form<'a> {
    /// Told to every sender.
    pub region: &'a str,
    /// Whether clients with tracing on are to report the sends.
    pub trace_on: bool,
    /// The version of our protocol.
    pub version: i16,
    /// The queue.
    pub queue_id: i64,
    /// The host and port that ids begin with, in hexadecimal digits.
    pub host_hex: &'a str,
}

impl Form<'_> {
    /// Write the frame that answers one request whose messages lie at `places`.
    pub fn answer(&self, serialization: i64, places: &[i64], queue_offset: i64, opaque: i32, out: &mut Vec<u8>) {
        framed(serialization, out, |out| {
            if serialization == 0 {
                self.json(places, queue_offset, opaque, out);
            } else {
                self.rocketmq(places, queue_offset, opaque, out);
            }
        });
    }

    fn traced(&self) -> &'static [u8] {
        if self.trace_on { b"true" } else { b"false" }
    }

    fn json(&self, places: &[i64], queue_offset: i64, opaque: i32, out: &mut Vec<u8>) {
        out.extend_from_slice(br#"{"code":0,"extFields":{"queueId":""#);
        decimal(self.queue_id, out);
        out.extend_from_slice(br#"","TRACE_ON":""#);
        out.extend_from_slice(self.traced());
        out.extend_from_slice(br#"","MSG_REGION":""#);
        out.extend_from_slice(self.region.as_bytes());
        out.extend_from_slice(br#"","msgId":""#);
        self.ids(places, out);
        out.extend_from_slice(br#"","queueOffset":""#);
        decimal(queue_offset, out);
        out.extend_from_slice(br#""},"#);
        end_of_json(opaque, self.version, out);
    }

    /// `| code | language | version | opaque | flag | remark length | ext length |`, and the fields.
    fn rocketmq(&self, places: &[i64], queue_offset: i64, opaque: i32, out: &mut Vec<u8>) {
        let begin = out.len();
        fixed_of_rocketmq(opaque, self.version, out);
        let ext = out.len();
        field(b"queueId", out, |out| decimal(self.queue_id, out));
        field(b"TRACE_ON", out, |out| out.extend_from_slice(self.traced()));
        field(b"MSG_REGION", out, |out| out.extend_from_slice(self.region.as_bytes()));
        field(b"msgId", out, |out| self.ids(places, out));
        field(b"queueOffset", out, |out| decimal(queue_offset, out));
        let size = out.len().saturating_sub(ext);
        put_size(size, begin.saturating_add(17), out);
    }

    /// The ids of messages that lie at these physical offsets, joined by commas.
    fn ids(&self, places: &[i64], out: &mut Vec<u8>) {
        for (number, place) in places.iter().enumerate() {
            if number > 0 {
                out.push(b',');
            }
            out.extend_from_slice(self.host_hex.as_bytes());
            out.extend(place.to_be_bytes().iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]));
        }
    }
}

/// A pull's answer beside the records.
pub struct Pulled<'a> {
    /// The response code.
    pub code: i16,
    /// The meaning of the code.
    pub remark: &'a str,
    /// Where the next pull begins, and the least and the greatest offset of the queue.
    pub offsets: [i64; 3],
    /// When the topic was made, for those who want to know.
    pub birth_ms: Option<i64>,
    /// The version of our protocol.
    pub version: i16,
}

impl Pulled<'_> {
    /// Write the frame that answers a pull up to its body, of which so many bytes follow.
    pub fn head(&self, serialization: i64, opaque: i32, size_bytes: usize, out: &mut Vec<u8>) {
        framed_with(serialization, size_bytes, out, |out| {
            if serialization == 0 {
                self.json(opaque, out);
            } else {
                self.rocketmq(opaque, out);
            }
        });
    }

    fn fields(&self) -> impl Iterator<Item = (&'static str, i64)> {
        let [next, low, high] = self.offsets;
        let known = [("suggestWhichBrokerId", 0), ("nextBeginOffset", next), ("minOffset", low), ("maxOffset", high)];
        known.into_iter().chain(self.birth_ms.map(|birth_ms| ("topicBirthMs", birth_ms)))
    }

    fn json(&self, opaque: i32, out: &mut Vec<u8>) {
        out.extend_from_slice(br#"{"code":"#);
        decimal(i64::from(self.code), out);
        out.extend_from_slice(br#","extFields":{"#);
        for (number, (name, value)) in self.fields().enumerate() {
            out.extend_from_slice(if number == 0 { b"\"" } else { b",\"" });
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b"\":\"");
            decimal(value, out);
            out.push(b'"');
        }
        out.extend_from_slice(br#"},"flag":1,"language":"JAVA","opaque":"#);
        decimal(i64::from(opaque), out);
        out.extend_from_slice(br#","remark":""#);
        out.extend_from_slice(self.remark.as_bytes());
        out.extend_from_slice(br#"","serializeTypeCurrentRPC":"JSON","version":"#);
        decimal(i64::from(self.version), out);
        out.push(b'}');
    }

    fn rocketmq(&self, opaque: i32, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.code.to_be_bytes());
        out.push(0);
        out.extend_from_slice(&self.version.to_be_bytes());
        out.extend_from_slice(&opaque.to_be_bytes());
        out.extend_from_slice(&[0, 0, 0, 1]);
        sized(out, |out| out.extend_from_slice(self.remark.as_bytes()));
        sized(out, |out| {
            for (name, value) in self.fields() {
                field(name.as_bytes(), out, |out| decimal(value, out));
            }
        });
    }
}

/// Write the frame that says to one request that it is done, and nothing else.
pub fn done(serialization: i64, opaque: i32, version: i16, out: &mut Vec<u8>) {
    framed(serialization, out, |out| {
        if serialization == 0 {
            out.extend_from_slice(br#"{"code":0,"#);
            end_of_json(opaque, version, out);
        } else {
            fixed_of_rocketmq(opaque, version, out);
        }
    });
}

fn framed(serialization: i64, out: &mut Vec<u8>, header: impl FnOnce(&mut Vec<u8>)) {
    framed_with(serialization, 0, out, header);
}

/// A frame whose body, of so many bytes, somebody else writes.
fn framed_with(serialization: i64, body_bytes: usize, out: &mut Vec<u8>, header: impl FnOnce(&mut Vec<u8>)) {
    let begin = out.len();
    out.extend_from_slice(&[0; 8]);
    header(out);
    let size = out.len().saturating_sub(begin).saturating_sub(4);
    let [_, _, _, _, s0, s1, s2, s3] = size.saturating_add(body_bytes).to_be_bytes();
    let [_, _, _, _, _, h1, h2, h3] = size.saturating_sub(4).to_be_bytes();
    if let Some(head) = out.get_mut(begin..).and_then(|frame| frame.first_chunk_mut::<8>()) {
        *head = [s0, s1, s2, s3, u8::from(serialization != 0), h1, h2, h3];
    }
}

fn end_of_json(opaque: i32, version: i16, out: &mut Vec<u8>) {
    out.extend_from_slice(br#""flag":1,"language":"JAVA","opaque":"#);
    decimal(i64::from(opaque), out);
    out.extend_from_slice(br#","serializeTypeCurrentRPC":"JSON","version":"#);
    decimal(i64::from(version), out);
    out.push(b'}');
}

fn fixed_of_rocketmq(opaque: i32, version: i16, out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, 0, 0]);
    out.extend_from_slice(&version.to_be_bytes());
    out.extend_from_slice(&opaque.to_be_bytes());
    out.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
}

fn field(name: &[u8], out: &mut Vec<u8>, value: impl FnOnce(&mut Vec<u8>)) {
    let [.., n0, n1] = name.len().to_be_bytes();
    out.extend_from_slice(&[n0, n1]);
    out.extend_from_slice(name);
    sized(out, value);
}

/// Write bytes, and before them how many there are.
fn sized(out: &mut Vec<u8>, value: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    value(out);
    let size = out.len().saturating_sub(at).saturating_sub(4);
    put_size(size, at, out);
}

fn put_size(size: usize, at: usize, out: &mut [u8]) {
    let [.., s0, s1, s2, s3] = size.to_be_bytes();
    if let Some(place) = out.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<4>()) {
        *place = [s0, s1, s2, s3];
    }
}

fn digit(half: u8) -> u8 {
    if half < 10 { half.wrapping_add(b'0') } else { half.wrapping_add(b'A' - 10) }
}

fn decimal(number: i64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut left = number.unsigned_abs();
    let mut count = 0usize;
    for place in digits.iter_mut().rev() {
        *place = b'0'.wrapping_add((left % 10) as u8);
        left /= 10;
        count = count.saturating_add(1);
        if left == 0 {
            break;
        }
    }
    if number < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(digits.get(digits.len().saturating_sub(count)..).unwrap_or(&[]));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_number_is_written_as_everywhere(number in any::<i64>()) {
            let mut out = Vec::new();
            decimal(number, &mut out);
            prop_assert_eq!(String::from_utf8(out), Ok(number.to_string()));
        }
    }
}
