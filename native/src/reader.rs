//! `Reader`: the bytes that connections brought, read into `Messages` a queue. Decides nothing: it takes what is open.

use std::collections::HashMap;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use crate::batch::{BATCH_MAX, batch_items};
use crate::completions::Completions;
use crate::frames::{Frame, Rest, cut};
use crate::headers::{EndHeader, SendHeader, end_header_json, end_header_rocketmq, send_header_json, send_header_rocketmq};
use crate::json::Text;
use crate::messages::{AT_ONCE, DURABLE, Messages, NO_ANSWER, Numbers, PROPERTIES_BYTES_MAX, Sender, Source};
use crate::properties::{half_properties, stored_properties};
use crate::signing::{FIELDS_USUAL, Verifier};

const FRAME_BYTES_MAX: i64 = 16 * 1024 * 1024;
const HEADER_BYTES_MAX: i64 = 1024 * 1024;
const END: i64 = 37;
const SEND: i64 = 310;
const SEND_BATCH: i64 = 320;
const TRANSACTION_MASK: i32 = 0xC;
const COMMIT: i32 = 8;
const ROLLBACK: i32 = 12;
/// Queues that are open at most; beyond them all are closed, and open again as they are used.
const OPEN_MAX: usize = 262_144;
const BATCHES_MAX: usize = 256;
const BATCH_TEXT_MAX: usize = 512;

/// Messages of one queue that came in one turn; half messages are those of one producer group, which is "" for all others.
pub struct Group {
    /// The topic.
    pub topic: String,
    /// The queue.
    pub queue_id: i32,
    /// The producer group of half messages.
    pub producer_group: String,
    /// The messages.
    pub messages: Messages,
}

/// The columns of a turn.
pub struct Reader {
    suffix: Vec<u8>,
    body_max: usize,
    open: HashSet<Vec<u8>>,
    open_halves: HashMap<Vec<u8>, Vec<u8>>,
    batches: HashMap<Vec<u8>, (Vec<u8>, bool)>,
    groups: Vec<Group>,
    numbers: HashMap<Vec<u8>, usize>,
    completions: Completions,
    key: Vec<u8>,
    text: Vec<u8>,
}

/// Write the name of a queue, or of what is asked for a topic: the topic, a byte that is in no text, and a number.
pub fn write_key(topic: &[u8], number: i64, key: &mut Vec<u8>) {
    key.clear();
    key.extend_from_slice(topic);
    key.push(0xFF);
    key.extend_from_slice(&number.to_be_bytes());
}

impl Reader {
    /// `suffix` are the pairs that each stored message gets, `body_max` the longest body.
    pub fn new(suffix: &[u8], body_max: usize) -> Self {
        Reader {
            suffix: suffix.to_vec(),
            body_max,
            open: HashSet::new(),
            open_halves: HashMap::new(),
            batches: HashMap::new(),
            groups: Vec::new(),
            numbers: HashMap::new(),
            completions: Completions::default(),
            key: Vec::new(),
            text: Vec::new(),
        }
    }

    /// Take the ordinary sends to a queue from now on.
    pub fn open(&mut self, topic: &str, queue_id: i64) {
        if self.open.len() >= OPEN_MAX {
            self.open.clear();
        }
        write_key(topic.as_bytes(), queue_id, &mut self.key);
        self.open.insert(self.key.clone());
    }

    /// Take the ordinary half messages for a queue from now on.
    pub fn open_halves(&mut self, topic: &str, queue_id: i64, suffix: &[u8]) {
        if self.open_halves.len() >= OPEN_MAX {
            self.open_halves.clear();
        }
        write_key(topic.as_bytes(), queue_id, &mut self.key);
        self.open_halves.insert(self.key.clone(), suffix.to_vec());
    }

    /// Take batches with these properties: each message gets `suffix`, and the sender waits for the sync or not.
    pub fn open_batch(&mut self, text: &[u8], suffix: &[u8], wait: bool) {
        if self.batches.len() >= BATCHES_MAX {
            self.batches.clear();
        }
        if text.len() <= BATCH_TEXT_MAX {
            self.batches.insert(text.to_vec(), (suffix.to_vec(), wait));
        }
    }

    /// Take nothing: topics changed.
    pub fn close(&mut self) {
        self.open.clear();
        self.open_halves.clear();
    }

    /// How many queues are open.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Read what a connection brought; `other` is given the frames that are something else. What a verifier does not know is.
    pub fn read(&mut self, peer: i64, source: &Arc<Source>, verifier: Option<&Verifier>, mut other: impl FnMut(Frame)) -> Rest {
        cut(source.data(), FRAME_BYTES_MAX, HEADER_BYTES_MAX, |frame| {
            if self.take_frame(peer, source, &frame, verifier).is_none() {
                other(frame);
            }
        })
    }

    /// Take out what was read since the last call.
    pub fn take(&mut self) -> Vec<Group> {
        self.numbers.clear();
        std::mem::take(&mut self.groups)
    }

    /// Take out what producers decided since the last call.
    pub fn completions(&mut self) -> Completions {
        std::mem::take(&mut self.completions)
    }

    fn take_frame(&mut self, peer: i64, source: &Arc<Source>, frame: &Frame, verifier: Option<&Verifier>) -> Option<()> {
        let (kind, text) = (frame.serialization, source.data().get(frame.start..frame.body)?);
        let code = code_of(kind, text)?;
        let mut texts = verifier.map(|_| Vec::with_capacity(FIELDS_USUAL));
        if code == END {
            let read = if kind == 0 { end_header_json } else { end_header_rocketmq };
            let completion = read(text, texts.as_mut())?;
            self.verify(verifier, code, b"", &texts.unwrap_or_default(), source.data().get(frame.body..frame.end)?)?;
            return self.take_completion(peer, i64::from(kind), &completion);
        }
        let header = if kind == 0 { send_header_json(text, texts.as_mut()) } else { send_header_rocketmq(text, texts.as_mut()) }?;
        self.verify(verifier, code, &header.topic, &texts.unwrap_or_default(), source.data().get(frame.body..frame.end)?)?;
        let transaction = header.sys_flag & TRANSACTION_MASK != 0;
        write_key(&header.topic, i64::from(header.queue_id), &mut self.key);
        let sender = Sender { peer, opaque: header.opaque, serialization: i64::from(frame.serialization), how: DURABLE, count: 1 };
        let body = frame.body..frame.end;
        if header.batch || transaction || header.flag != 0 || body.len() > self.body_max {
            if header.flag & 1 != 0 || body.len() > self.body_max {
                return None;
            }
            if transaction {
                return self.take_half(source, &header, body, sender);
            }
            if !self.open.contains(&self.key) {
                return None;
            }
            if header.batch {
                return self.take_batch(source, &header, body, sender);
            }
        } else {
            if !self.numbers.contains_key(&self.key) && !self.open.contains(&self.key) {
                return None;
            }
            if header.properties.len() > PROPERTIES_BYTES_MAX.checked_sub(self.suffix.len())? {
                return None;
            }
        }
        self.take_one(source, &header, body, sender)
    }

    /// Verify a request, if that is wanted.
    fn verify(&mut self, verifier: Option<&Verifier>, code: i64, topic: &[u8], texts: &[Text<'_>], body: &[u8]) -> Option<()> {
        let Some(verifier) = verifier else { return Some(()) };
        write_key(topic, code, &mut self.key);
        verifier.passes(&self.key, texts, body).then_some(())
    }

    fn take_completion(&mut self, peer: i64, serialization: i64, completion: &EndHeader<'_>) -> Option<()> {
        if completion.flag & 1 != 0 || !matches!(completion.decision, COMMIT | ROLLBACK) {
            return None;
        }
        let (group, key) = (std::str::from_utf8(&completion.group).ok()?, std::str::from_utf8(&completion.key).ok()?);
        let caller = (completion.flag & 2 == 0).then_some((peer, completion.opaque, serialization));
        self.completions.add(
            caller,
            peer,
            group,
            completion.index,
            completion.place,
            completion.decision == COMMIT,
            key,
            completion.check,
        );
        Some(())
    }

    /// Take an ordinary send, which may want no answer.
    fn take_one(&mut self, source: &Arc<Source>, header: &SendHeader<'_>, body: Range<usize>, sender: Sender) -> Option<()> {
        self.text.clear();
        let found = stored_properties(&header.properties, &self.suffix, &mut self.text)?;
        if header.flag != 0 && self.text.len() > PROPERTIES_BYTES_MAX {
            return None;
        }
        let (messages, text) = self.group(header, "")?;
        messages.add(source, body, text, numbers_of(header, header.sys_flag, found.code));
        messages.sent(Sender { how: how(header, found.wait), ..sender });
        Some(())
    }

    fn take_half(&mut self, source: &Arc<Source>, header: &SendHeader<'_>, body: Range<usize>, sender: Sender) -> Option<()> {
        let suffix = self.open_halves.get(&self.key)?;
        let long = header.properties.len().saturating_add(suffix.len()) >= PROPERTIES_BYTES_MAX;
        if header.batch || header.flag & 2 != 0 || long {
            return None;
        }
        self.text.clear();
        let found = half_properties(&header.properties, suffix, &mut self.text)?;
        self.key.extend_from_slice(found.group.as_bytes());
        let (messages, text) = self.group(header, &found.group)?;
        messages.add(source, body, text, numbers_of(header, header.sys_flag & !TRANSACTION_MASK, found.code));
        messages.sent(Sender { how: how(header, found.wait), ..sender });
        Some(())
    }

    fn take_batch(&mut self, source: &Arc<Source>, header: &SendHeader<'_>, body: Range<usize>, sender: Sender) -> Option<()> {
        let (suffix, wait) = self.batches.get(&*header.properties)?;
        let how = how(header, *wait);
        let begin = body.start;
        let data = source.data().get(body)?;
        let items = batch_items(data).ok()?;
        if !(1..=BATCH_MAX).contains(&items.len()) {
            return None;
        }
        self.text.clear();
        let mut prepared = Vec::with_capacity(items.len());
        for item in &items {
            let from = self.text.len();
            let found = stored_properties(data.get(item.properties.clone())?, suffix, &mut self.text)?;
            if self.text.len().saturating_sub(from) > PROPERTIES_BYTES_MAX {
                return None;
            }
            prepared.push((from..self.text.len(), found.code));
        }
        let (messages, text) = self.group(header, "")?;
        for (item, (range, code)) in items.iter().zip(prepared) {
            let place = begin.saturating_add(item.body.start)..begin.saturating_add(item.body.end);
            let numbers = Numbers { flag: i64::from(item.flag), ..numbers_of(header, header.sys_flag, code) };
            messages.add(source, place, text.get(range).unwrap_or(&[]), numbers);
        }
        messages.sent(Sender { how, count: items.len(), ..sender });
        Some(())
    }

    /// The messages of the group whose key was written, which is made where it is not there, and the text that was prepared.
    fn group(&mut self, header: &SendHeader<'_>, producer_group: &str) -> Option<(&mut Messages, &[u8])> {
        let number = match self.numbers.get(&self.key) {
            Some(number) => *number,
            None => {
                let topic = String::from_utf8(header.topic.to_vec()).ok()?;
                let (queue_id, producer_group) = (header.queue_id, producer_group.to_owned());
                self.numbers.insert(self.key.clone(), self.groups.len());
                self.groups.push(Group { topic, queue_id, producer_group, messages: Messages::default() });
                self.groups.len().checked_sub(1)?
            }
        };
        self.groups.get_mut(number).map(|group| (&mut group.messages, &self.text[..]))
    }
}

/// The code of a request that is read here: the first that it names.
fn code_of(serialization: u8, header: &[u8]) -> Option<i64> {
    match serialization {
        0 if header.starts_with(b"{\"code\":310,") => Some(SEND),
        0 if header.starts_with(b"{\"code\":320,") => Some(SEND_BATCH),
        0 if header.starts_with(b"{\"code\":37,") => Some(END),
        1 if header.len() > 21 && header.starts_with(b"\x01\x36") => Some(SEND),
        1 if header.len() > 21 && header.starts_with(b"\x01\x40") => Some(SEND_BATCH),
        1 if header.len() > 21 && header.starts_with(b"\0\x25") => Some(END),
        _ => None,
    }
}

fn how(header: &SendHeader<'_>, wait: bool) -> i64 {
    if header.flag & 2 != 0 {
        NO_ANSWER
    } else if wait {
        DURABLE
    } else {
        AT_ONCE
    }
}

fn numbers_of(header: &SendHeader<'_>, sys_flag: i32, code: i32) -> Numbers {
    Numbers {
        flag: i64::from(header.user_flag),
        sys_flag: i64::from(sys_flag),
        born_ms: header.born_ms,
        reconsume: i64::from(header.reconsume),
        prepared: 0,
        code: i64::from(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(header: &[u8], body: &[u8]) -> Vec<u8> {
        let mut made = ((4 + header.len() + body.len()) as u32).to_be_bytes().to_vec();
        made.extend_from_slice(&(header.len() as u32).to_be_bytes());
        made.extend_from_slice(header);
        made.extend_from_slice(body);
        made
    }

    fn send(extra: &str, body: &[u8]) -> Vec<u8> {
        let text = format!(
            r#"{{"code":310,"extFields":{{"b":"T","e":1,"f":0,"g":5,"h":0,"i":"WAIT\u0001false\u0002K\u0001v"{extra}}},"opaque":3}}"#
        );
        frame(text.as_bytes(), body)
    }

    fn reader() -> Reader {
        let mut made = Reader::new(b"C\x01c\x02", 100);
        made.open("T", 1);
        made.open_batch(b"WAIT\x01false\x02K\x01v", b"C\x01c\x02", true);
        made.open_halves("T", 1, b"C\x01c\x02");
        made
    }

    #[test]
    fn a_send_to_an_open_queue_is_taken_and_another_is_not() {
        let mut reader = reader();
        let mut others = 0;
        let source = Source::new(Box::new([send("", b"body"), send(r#","e":2"#, b"body")].concat()), &[1; 8]);
        let rest = reader.read(9, &source, None, |_| others += 1);
        assert_eq!((rest.used, others), (source.data().len(), 1));
        let groups = reader.take();
        assert_eq!(groups.len(), 1);
        for group in groups {
            let found: Vec<_> = group.messages.views().map(|view| (view.body.to_vec(), view.properties.to_vec())).collect();
            assert_eq!(found, [(b"body".to_vec(), b"K\x01v\x02C\x01c\x02".to_vec())]);
            assert_eq!(group.messages.senders(), [Sender { peer: 9, opaque: 3, serialization: 0, how: AT_ONCE, count: 1 }]);
        }
    }

    #[test]
    fn a_batch_that_is_refused_leaves_no_group_behind() {
        let mut reader = reader();
        let item = b"\0\0\0\x1e\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01x\0\x07DELAY\x011";
        let source = Source::new(Box::new(send(r#","m":true"#, item)), &[1; 8]);
        let mut others = 0;
        reader.read(9, &source, None, |_| others += 1);
        assert_eq!((others, reader.take().len()), (1, 0));
    }

    proptest! {
        #[test]
        fn damaged_bytes_are_read_or_given_back(damage in proptest::collection::vec((0usize..900, any::<u8>()), 0..6)) {
            let mut reader = reader();
            let mut data = [send("", b"body"), send(r#","m":"true""#, &[0; 44]), send(r#","f":4"#, b""), send("", b"")].concat();
            for (at, byte) in damage {
                if let Some(place) = data.get_mut(at) {
                    *place = byte;
                }
            }
            let size = data.len();
            let source = Source::new(Box::new(data), &[1; 8]);
            let rest = reader.read(1, &source, None, |_| {});
            prop_assert!(rest.used <= size);
            for group in reader.take() {
                prop_assert!(!group.messages.is_empty());
            }
        }

        #[test]
        fn any_bytes_are_read_or_given_back(data in proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..300)) {
            let source = Source::new(Box::new(data), &[]);
            let _ = reader().read(1, &source, None, |_| {});
        }
    }
}
