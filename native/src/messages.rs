//! `Messages`: messages of one queue in the order they came, and who sent them. From them come the log's bytes and the answers.
//!
//! Layout of a record with two IPv4 hosts (big endian; an IPv6 host takes 20 bytes instead of 8, by bits 0x10 and 0x20 of
//! sysFlag):
//!
//! ```text
//! 0 totalSize i32 | 4 magic i32 | 8 bodyCRC i32 | 12 queueId i32 | 16 flag i32 | 20 queueOffset i64 | 28 physicalOffset i64
//! 36 sysFlag i32 | 40 bornTimestamp i64 | 48 bornHost 8 | 56 storeTimestamp i64 | 64 storeHost 8 | 72 reconsumeTimes i32
//! 76 preparedTransactionOffset i64 | 84 body length i32, body
//! topic length u8, topic | properties length i16, properties
//! ```
//!
//! A queue entry is `| physical offset i64 | size i32 | tag code i64 |`.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::answers::Form;

/// How a sender is answered: not at all.
pub const NO_ANSWER: i64 = 0;
/// How a sender is answered: as soon as its messages are stored.
pub const AT_ONCE: i64 = 1;
/// How a sender is answered: once its messages are on the device.
pub const DURABLE: i64 = 2;

const MAGIC: u32 = 0xDAA3_20A7;
const BORN_V6: i64 = 0x10;
const STORE_V6: i64 = 0x20;
const TRANSACTION_MASK: i64 = 0xC;
const COMMIT: i64 = 0x8;
/// The bit that PREPARED and ROLLBACK share.
const NOT_QUEUED: i64 = 0x4;
const TOPIC_LENGTH_MAX: usize = 127;
/// Longest properties of a record.
pub const PROPERTIES_BYTES_MAX: usize = 32767;
const ENTRY_BYTES: usize = 20;
/// Bytes of a record beside hosts, topic, body and properties.
const FIXED_BYTES: usize = 75;

/// Whether a message with these bits has a queue entry.
pub fn is_queued(sys_flag: i64) -> bool {
    sys_flag & NOT_QUEUED == 0
}

/// Bytes that somebody keeps for us.
pub type Bytes = Box<dyn AsRef<[u8]> + Send + Sync>;

/// Bytes that hold bodies, and where the messages in them were born.
pub struct Source {
    data: Bytes,
    host: Vec<u8>,
}

impl Source {
    /// Keep received bytes; `host` is stored as where their messages were born.
    pub fn new(data: Bytes, host: &[u8]) -> Arc<Self> {
        Arc::new(Source { data, host: host.to_vec() })
    }

    /// The bytes.
    pub fn data(&self) -> &[u8] {
        (*self.data).as_ref()
    }

    /// Where messages in them were born.
    pub fn host(&self) -> &[u8] {
        &self.host
    }
}

/// The numbers of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// The user's flag.
    pub flag: i64,
    /// Bits of the message.
    pub sys_flag: i64,
    /// When it was made.
    pub born_ms: i64,
    /// How often it was consumed.
    pub reconsume: i64,
    /// Where its half message lies.
    pub prepared: i64,
    /// Tag code of its queue entry.
    pub code: i64,
}

#[derive(Clone)]
struct Draft {
    source: usize,
    body: Range<usize>,
    text: Range<usize>,
    numbers: Numbers,
    /// Whether all numbers were ones of 64 bits.
    fits: bool,
}

/// The sender of one request's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The connection.
    pub peer: i64,
    /// Number of the request.
    pub opaque: i32,
    /// How its header was written.
    pub serialization: i64,
    /// How it is answered.
    pub how: i64,
    /// How many messages it sent.
    pub count: usize,
}

/// One message as it is stored.
pub struct View<'a> {
    /// Its body.
    pub body: &'a [u8],
    /// Its properties.
    pub properties: &'a [u8],
    /// Where it was born.
    pub host: &'a [u8],
    /// Its numbers.
    pub numbers: Numbers,
}

/// Where records go.
pub struct Target<'a> {
    /// The topic that they name.
    pub topic: &'a [u8],
    /// The queue that they name.
    pub queue_id: i64,
    /// The queue offset of the first.
    pub queue_offset: i64,
    /// The physical offset of the first.
    pub at: i64,
    /// How many bytes are free there.
    pub room: i64,
    /// The longest record that is possible.
    pub size_max: i64,
    /// When they are stored.
    pub now: i64,
    /// Where they are stored.
    pub host: &'a [u8],
}

/// Which messages are encoded, and how large that becomes.
pub struct Plan {
    range: Range<usize>,
    places: Vec<i64>,
    /// Bytes of all records.
    pub record_bytes: usize,
    /// Bytes of all queue entries.
    pub entry_bytes: usize,
}

/// Why a message cannot be stored.
pub struct Illegal(pub String);

impl Illegal {
    fn out_of_range() -> Self {
        Illegal("a number of the message is out of range".into())
    }
}

/// The columns.
#[derive(Default)]
pub struct Messages {
    sources: Vec<Arc<Source>>,
    texts: Vec<u8>,
    drafts: Vec<Draft>,
    senders: Vec<Sender>,
    places: Vec<i64>,
}

impl Messages {
    /// Add a message whose body lies in a source.
    pub fn add(&mut self, source: &Arc<Source>, body: Range<usize>, properties: &[u8], numbers: Numbers) {
        self.add_made(source, body, properties, numbers, true);
    }

    /// Add a message that somebody made; `fits`: its numbers are those that it was made with.
    pub fn add_made(&mut self, source: &Arc<Source>, body: Range<usize>, properties: &[u8], numbers: Numbers, fits: bool) {
        if !self.sources.last().is_some_and(|last| Arc::ptr_eq(last, source)) {
            self.sources.push(Arc::clone(source));
        }
        let begin = self.texts.len();
        self.texts.extend_from_slice(properties);
        let source = self.sources.len().saturating_sub(1);
        self.drafts.push(Draft { source, body, text: begin..self.texts.len(), numbers, fits });
    }

    /// Add the messages of commits: half messages with the commit bit and the place of their own records.
    pub fn add_committed(&mut self, half: &Messages, place: i64) {
        for draft in &half.drafts {
            let Some(source) = half.sources.get(draft.source) else { continue };
            let sys_flag = draft.numbers.sys_flag & !TRANSACTION_MASK | COMMIT;
            let numbers = Numbers { sys_flag, prepared: place, ..draft.numbers };
            self.add_made(source, draft.body.clone(), half.view(draft).properties, numbers, draft.fits);
        }
    }

    /// Each message by itself, which holds no bytes of others.
    pub fn kept(&self) -> impl Iterator<Item = Messages> {
        self.drafts.iter().map(|draft| {
            let view = self.view(draft);
            let mut one = Messages::default();
            let source = Source::new(Box::new(view.body.to_vec()), view.host);
            one.add_made(&source, 0..view.body.len(), view.properties, draft.numbers, draft.fits);
            one
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.drafts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.drafts.is_empty()
    }

    /// Say who sent the next messages.
    pub fn sent(&mut self, sender: Sender) {
        self.senders.push(sender);
    }

    /// The senders, in order.
    pub fn senders(&self) -> &[Sender] {
        &self.senders
    }

    /// The physical offsets of those that are encoded.
    pub fn places(&self) -> &[i64] {
        &self.places
    }

    /// Say where messages lie that are stored already.
    pub fn lie_at(&mut self, places: Vec<i64>) {
        self.places = places;
    }

    /// The messages.
    pub fn views(&self) -> impl Iterator<Item = View<'_>> {
        self.drafts.iter().map(|draft| self.view(draft))
    }

    fn view(&self, draft: &Draft) -> View<'_> {
        let (data, host) = self.sources.get(draft.source).map_or((&[][..], &[][..]), |one| (one.data(), one.host()));
        View {
            body: data.get(draft.body.clone()).unwrap_or(&[]),
            properties: self.texts.get(draft.text.clone()).unwrap_or(&[]),
            host,
            numbers: draft.numbers,
        }
    }

    /// The messages of each request by themselves, none of them encoded.
    pub fn apart(&self) -> Vec<Messages> {
        let mut left = self.drafts.iter();
        let of_one = |sender: &Sender| {
            let mut one = Messages { senders: vec![*sender], ..Messages::default() };
            for draft in left.by_ref().take(sender.count) {
                let Some(source) = self.sources.get(draft.source) else { continue };
                one.add_made(source, draft.body.clone(), self.view(draft).properties, draft.numbers, draft.fits);
            }
            one
        };
        self.senders.iter().map(of_one).collect()
    }

    // ------------------------------------------------------------ records

    /// Choose what of those that are left fits into the room; what one request brought is not parted. See `encode` in Python.
    pub fn plan(&self, target: &Target<'_>) -> Result<Plan, Illegal> {
        let done = self.places.len();
        let mut plan = Plan { range: done..done, places: Vec::new(), record_bytes: 0, entry_bytes: 0 };
        let fixed = FIXED_BYTES.saturating_add(target.host.len()).saturating_add(target.topic.len());
        let end = target.at.saturating_add(target.room);
        let (mut at, mut queue_offset) = (target.at, target.queue_offset);
        let mut ends = vec![(0, 0)];
        for draft in self.drafts.get(done..).unwrap_or(&[]) {
            let view = self.view(draft);
            if view.host.len() != 8 && view.host.len() != 20 {
                return Err(Illegal(format!("a born host of {} bytes", view.host.len())));
            }
            let size = fixed.saturating_add(view.host.len()).saturating_add(view.body.len()).saturating_add(view.properties.len());
            let wide = i64::try_from(size).unwrap_or(i64::MAX);
            if wide > target.size_max {
                return Err(Illegal(format!("a record of {wide} bytes is longer than {}", target.size_max)));
            }
            let behind = at.checked_add(wide).ok_or_else(Illegal::out_of_range)?;
            if behind > end {
                break;
            }
            check(draft, target, wide)?;
            if !(1..=TOPIC_LENGTH_MAX).contains(&target.topic.len()) {
                return Err(Illegal(format!("a topic of {} bytes; 1 to {TOPIC_LENGTH_MAX} are possible", target.topic.len())));
            }
            if view.properties.len() > PROPERTIES_BYTES_MAX {
                let size = view.properties.len();
                return Err(Illegal(format!("properties of {size} bytes; at most {PROPERTIES_BYTES_MAX} are possible")));
            }
            if is_queued(draft.numbers.sys_flag) {
                plan.entry_bytes = plan.entry_bytes.saturating_add(ENTRY_BYTES);
                queue_offset = queue_offset.checked_add(1).ok_or_else(Illegal::out_of_range)?;
            }
            plan.places.push(at);
            plan.record_bytes = plan.record_bytes.saturating_add(size);
            ends.push((plan.record_bytes, plan.entry_bytes));
            at = behind;
        }
        let found = done.saturating_add(plan.places.len());
        let whole = if found < self.drafts.len() { self.whole(found).saturating_sub(done) } else { plan.places.len() };
        plan.places.truncate(whole);
        (plan.record_bytes, plan.entry_bytes) = ends.get(whole).copied().unwrap_or((0, 0));
        plan.range.end = done.saturating_add(whole);
        Ok(plan)
    }

    /// How many of the first messages belong to requests that lie among them whole.
    fn whole(&self, count: usize) -> usize {
        if self.senders.is_empty() {
            return count;
        }
        let mut whole = 0usize;
        for sender in &self.senders {
            let end = whole.saturating_add(sender.count);
            if end > count {
                break;
            }
            whole = end;
        }
        whole
    }

    /// Write what was planned, and note where it lies. `None`: the room given is not what the plan says; nothing is noted.
    pub fn write(&mut self, plan: Plan, target: &Target<'_>, records: &mut [u8], entries: &mut [u8]) -> Option<()> {
        let (mut records, mut entries) = (Pen(records), Pen(entries));
        let mut queue_offset = target.queue_offset;
        let [.., topic_length] = target.topic.len().to_be_bytes();
        let store_v6 = if target.host.len() == 20 { STORE_V6 } else { 0 };
        for (draft, place) in self.drafts.get(plan.range)?.iter().zip(&plan.places) {
            let view = self.view(draft);
            let numbers = draft.numbers;
            let queued = is_queued(numbers.sys_flag);
            let born_v6 = if view.host.len() == 20 { BORN_V6 } else { 0 };
            let size = FIXED_BYTES.checked_add(view.host.len())?.checked_add(target.host.len())?;
            let size = size.checked_add(target.topic.len())?.checked_add(view.body.len())?;
            let size = size.checked_add(view.properties.len())?;
            records.u32(size)?;
            records.put(&MAGIC.to_be_bytes())?;
            records.put(&(crc32fast::hash(view.body) & 0x7FFF_FFFF).to_be_bytes())?;
            records.i32(target.queue_id)?;
            records.i32(numbers.flag)?;
            records.put(&(if queued { queue_offset } else { 0 }).to_be_bytes())?;
            records.put(&place.to_be_bytes())?;
            records.i32(numbers.sys_flag & !(BORN_V6 | STORE_V6) | born_v6 | store_v6)?;
            records.put(&numbers.born_ms.to_be_bytes())?;
            records.put(view.host)?;
            records.put(&target.now.to_be_bytes())?;
            records.put(target.host)?;
            records.i32(numbers.reconsume)?;
            records.put(&numbers.prepared.to_be_bytes())?;
            records.u32(view.body.len())?;
            records.put(view.body)?;
            records.put(&[topic_length])?;
            records.put(target.topic)?;
            let [.., high, low] = view.properties.len().to_be_bytes();
            records.put(&[high, low])?;
            records.put(view.properties)?;
            if queued {
                entries.put(&place.to_be_bytes())?;
                entries.u32(size)?;
                entries.put(&numbers.code.to_be_bytes())?;
                queue_offset = queue_offset.checked_add(1)?;
            }
        }
        if !records.0.is_empty() || !entries.0.is_empty() {
            return None;
        }
        self.places.extend_from_slice(&plan.places);
        Some(())
    }

    /// The size of each record, in bytes.
    pub fn sizes(&self, topic_bytes: usize, host_bytes: usize) -> Vec<usize> {
        let fixed = FIXED_BYTES.saturating_add(topic_bytes).saturating_add(host_bytes);
        let size = |view: View<'_>| {
            fixed.saturating_add(view.body.len()).saturating_add(view.properties.len()).saturating_add(view.host.len())
        };
        self.views().map(size).collect()
    }

    // ------------------------------------------------------------ answers

    /// Give the answers to those senders that are answered so; the first message has `queue_offset`. `None`: a message was not
    /// encoded.
    pub fn answers(&self, which: i64, queue_offset: i64, form: &Form<'_>, told: &mut Told) -> Option<()> {
        let mut at = 0usize;
        for sender in &self.senders {
            let end = at.saturating_add(sender.count);
            if sender.how & which != 0 {
                let places = self.places.get(at..end)?;
                let offset = queue_offset.saturating_add(i64::try_from(at).ok()?);
                form.answer(sender.serialization, places, offset, sender.opaque, told.of(sender.peer)?);
            }
            at = end;
        }
        Some(())
    }
}

/// Frames for each connection, joined, in the order of the connections' first frames.
#[derive(Default)]
pub struct Told {
    /// Connection and frames.
    pub found: Vec<(i64, Vec<u8>)>,
    places: HashMap<i64, usize>,
}

impl Told {
    fn of(&mut self, peer: i64) -> Option<&mut Vec<u8>> {
        let place = *self.places.entry(peer).or_insert(self.found.len());
        if place == self.found.len() {
            self.found.push((peer, Vec::with_capacity(512)));
        }
        self.found.get_mut(place).map(|(_, frames)| frames)
    }
}

/// Refuse a message with a number that has no place in a record.
fn check(draft: &Draft, target: &Target<'_>, size: i64) -> Result<(), Illegal> {
    let numbers = draft.numbers;
    let sys_flag = numbers.sys_flag & !(BORN_V6 | STORE_V6);
    let fit = [size, target.queue_id, numbers.flag, sys_flag, numbers.reconsume].iter().all(|one| i32::try_from(*one).is_ok());
    if fit && draft.fits { Ok(()) } else { Err(Illegal::out_of_range()) }
}

/// Writes from the front; `None` where there is no room, or the number has none.
struct Pen<'a>(&'a mut [u8]);

impl Pen<'_> {
    fn put(&mut self, data: &[u8]) -> Option<()> {
        let (here, behind) = std::mem::take(&mut self.0).split_at_mut_checked(data.len())?;
        here.copy_from_slice(data);
        self.0 = behind;
        Some(())
    }

    fn i32(&mut self, number: i64) -> Option<()> {
        self.put(&i32::try_from(number).ok()?.to_be_bytes())
    }

    fn u32(&mut self, number: usize) -> Option<()> {
        self.put(&u32::try_from(number).ok()?.to_be_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages(bodies: &[Vec<u8>], counts: &[usize]) -> Messages {
        let mut made = Messages::default();
        for body in bodies {
            let source = Source::new(Box::new(body.clone()), &[1; 8]);
            let numbers = Numbers { sys_flag: if body.len() % 5 == 4 { 4 } else { 0 }, ..Numbers::default() };
            made.add(&source, 0..body.len(), b"K\x01v\x02", numbers);
        }
        for count in counts {
            made.sent(Sender { peer: 1, opaque: 2, serialization: 0, how: AT_ONCE, count: *count });
        }
        made
    }

    proptest! {
        #[test]
        fn what_is_planned_is_what_is_written(
            bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..9),
            counts in proptest::collection::vec(0usize..4, 0..6), at in any::<i64>(), room in any::<i64>(), near in 0i64..1500,
        ) {
            for (at, room) in [(at, room), (0, near)] {
                let mut made = messages(&bodies, &counts);
                let target = Target {
                    topic: b"T", queue_id: 1, queue_offset: 7, at, room, size_max: 4096, now: 5, host: &[2; 8],
                };
                let Ok(plan) = made.plan(&target) else { continue };
                let (mut records, mut entries) = (vec![0; plan.record_bytes], vec![0; plan.entry_bytes]);
                prop_assert!(made.write(plan, &target, &mut records, &mut entries).is_some());
                let whole: usize = made.sizes(1, 8).iter().take(made.places().len()).sum();
                prop_assert_eq!(whole, records.len());
                let form = Form { region: "R", trace_on: true, version: 1, queue_id: 1, host_hex: "00" };
                let _ = made.answers(AT_ONCE, i64::MAX, &form, &mut Told::default());
            }
        }
    }
}
