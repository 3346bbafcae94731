//! Stored records as columns of Arrow: whole buffers of numbers, offsets, bytes and bits, made in one walk over the records.

use memchr::{memchr, memchr_iter};

use crate::record::{self, Head, Parts};

const COMPRESSED: i32 = 1;
/// Years 1 to 9999, in milliseconds.
const MS_MIN: i64 = -62_135_596_800_000;
const MS_MAX: i64 = 253_402_300_799_999;
/// Rows after which the buffers are given room for all others.
const ROWS_OF_ESTIMATE: usize = 32;
/// Properties of a record, up to which their names are compared each with each.
const PAIRS_MAX: usize = 32;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The queue's number.
    QueueId,
    /// The place in the queue.
    QueueOffset,
    /// The place in the log.
    PhysicalOffset,
    /// Bits, but that of compressed bodies.
    SysFlag,
    /// The user's flag.
    Flag,
    /// How often it was consumed in vain.
    Reconsume,
    /// Where its half message lies.
    Prepared,
    /// When it was made, microseconds.
    Born,
    /// When it was stored, microseconds.
    Stored,
    /// Its topic.
    Topic,
    /// Its unique key, or where it lies.
    Id,
    /// Its keys, where it has some.
    Keys,
    /// Its tag, where it has one.
    Tags,
    /// Where it was made.
    BornHost,
    /// Its body.
    Body,
    /// All its properties.
    Properties,
}

/// The kinds, by the names of their columns.
pub fn kind_of(name: &str) -> Option<Kind> {
    Some(match name {
        "queueId" => Kind::QueueId,
        "queueOffset" => Kind::QueueOffset,
        "commitOffset" => Kind::PhysicalOffset,
        "sysFlag" => Kind::SysFlag,
        "flag" => Kind::Flag,
        "reconsumeTimes" => Kind::Reconsume,
        "preparedTransactionOffset" => Kind::Prepared,
        "bornTimestamp" => Kind::Born,
        "storeTimestamp" => Kind::Stored,
        "topic" => Kind::Topic,
        "msgId" => Kind::Id,
        "keys" => Kind::Keys,
        "tags" => Kind::Tags,
        "bornHost" => Kind::BornHost,
        "body" => Kind::Body,
        "properties" => Kind::Properties,
        _ => return None,
    })
}

/// Values of different lengths: offsets of 32 bits and the bytes.
#[derive(Debug, Default)]
pub struct Texts {
    /// Where each begins, and where the last ends.
    pub offsets: Vec<u8>,
    /// Their bytes.
    pub data: Vec<u8>,
    /// What the last one was made of, where the next is most often the same, and how long it is.
    last_source: Vec<u8>,
    last_size: usize,
}

impl Texts {
    fn new() -> Self {
        Texts { offsets: 0_i32.to_ne_bytes().to_vec(), ..Texts::default() }
    }

    fn end(&mut self) -> Option<()> {
        self.offsets.extend_from_slice(&i32::try_from(self.data.len()).ok()?.to_ne_bytes());
        Some(())
    }

    fn add(&mut self, text: &[u8]) -> Option<()> {
        self.data.extend_from_slice(text);
        self.end()
    }
}

/// One column.
#[derive(Debug)]
pub enum Column {
    /// Numbers.
    Numbers(Vec<u8>),
    /// Where bytes of the records lie: where each begins, where it ends; and once more where the last ends.
    Spans(Vec<u8>),
    /// Texts; bits of those that are there, and whether all are.
    Texts(Texts, Vec<u8>, bool),
    /// Where the pairs of each record begin, and names and values of all.
    Map(Vec<u8>, Texts, Texts),
}

impl Column {
    fn each(&mut self, mut act: impl FnMut(&mut Vec<u8>)) {
        match self {
            Column::Numbers(buffer) | Column::Spans(buffer) => act(buffer),
            Column::Texts(texts, bits, _) => [&mut texts.offsets, &mut texts.data, bits].into_iter().for_each(act),
            Column::Map(offsets, names, values) => {
                [offsets, &mut names.offsets, &mut names.data, &mut values.offsets, &mut values.data].into_iter().for_each(act);
            }
        }
    }

    /// Its buffers, in the order in which Arrow has them.
    pub fn buffers(&self) -> Vec<Option<&[u8]>> {
        match self {
            Column::Numbers(buffer) | Column::Spans(buffer) => vec![Some(buffer)],
            Column::Texts(texts, bits, all) => vec![(!*all).then_some(bits), Some(&texts.offsets), Some(&texts.data)],
            Column::Map(offsets, names, values) => {
                [offsets, &names.offsets, &names.data, &values.offsets, &values.data].map(|buffer| Some(buffer.as_slice())).to_vec()
            }
        }
    }

    fn new(kind: Kind) -> Self {
        match kind {
            Kind::Topic | Kind::Id | Kind::Keys | Kind::Tags | Kind::BornHost => Column::Texts(Texts::new(), Vec::new(), true),
            Kind::Body => Column::Spans(Vec::new()),
            Kind::Properties => Column::Map(0_i32.to_ne_bytes().to_vec(), Texts::new(), Texts::new()),
            _ => Column::Numbers(Vec::new()),
        }
    }
}

/// Give a buffer room for as much again as the rest of the records takes, when they are like those before.
fn make_room(buffer: &mut Vec<u8>, done: usize, all: usize) {
    let more = buffer.len().checked_mul(all.saturating_sub(done)).and_then(|bytes| bytes.checked_div(done));
    buffer.reserve(more.unwrap_or(0).saturating_add(64));
}

/// Rows of some columns.
#[derive(Debug)]
pub struct Rows {
    /// How many.
    pub count: usize,
    /// Their columns, in the order asked for.
    pub columns: Vec<Column>,
}

/// A record and its properties, name and value of each.
struct Record<'a> {
    head: Head,
    parts: Parts,
    at: usize,
    data: &'a [u8],
    pairs: Vec<(&'a [u8], &'a [u8])>,
}

impl<'a> Record<'a> {
    fn part(&self, at: usize, size: usize) -> Option<&'a [u8]> {
        self.data.get(at..at.checked_add(size)?)
    }

    fn value(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.pairs.iter().find(|(each, _)| *each == name).map(|(_, value)| *value)
    }
}

/// Return the records that lie one behind another and have a queue offset from `begin` up to `end`, as rows. `None`: they are not
/// all ordinary ones, or (`verify`) the body of one has another CRC than it says.
pub fn rows(data: &[u8], begin: i64, end: i64, kinds: &[Kind], verify: bool) -> Option<Rows> {
    let mut found = Rows { count: 0, columns: kinds.iter().copied().map(Column::new).collect() };
    let (mut at, mut pairs) = (0, Vec::new());
    let wants_pairs = kinds.iter().any(|kind| matches!(kind, Kind::Id | Kind::Keys | Kind::Tags | Kind::Properties));
    while at < data.len() {
        let parts = record::parts_at(&data, at)?;
        let head = record::head_at(data, at, parts.hosts)?;
        let next = parts.end;
        if (begin..end).contains(&head.offsets[0]) {
            if parts.hosts != (8, 8) {
                return None;
            }
            pairs.clear();
            let mut record = Record { head, parts, at, data, pairs };
            if verify {
                let [_, _, crc, _, _] = record.head.first;
                let body = record.part(parts.body_at, parts.body)?;
                if (crc32fast::hash(body) & 0x7FFF_FFFF).to_be_bytes() != crc.to_be_bytes() {
                    return None;
                }
            }
            if wants_pairs {
                read_pairs(&mut record)?;
            }
            for (kind, column) in kinds.iter().zip(&mut found.columns) {
                add(*kind, column, &record, found.count)?;
            }
            pairs = record.pairs;
            found.count = found.count.checked_add(1)?;
            if found.count == ROWS_OF_ESTIMATE {
                found.columns.iter_mut().for_each(|column| column.each(|buffer| make_room(buffer, next, data.len())));
            }
        }
        at = next;
    }
    for column in &mut found.columns {
        if let Column::Spans(spans) = column {
            let last = spans.last_chunk::<4>().copied().unwrap_or([0; 4]);
            spans.extend_from_slice(&last);
        }
    }
    Some(found)
}

/// Take the properties apart; `None`: they are no UTF-8, or many, or one is there twice.
fn read_pairs(record: &mut Record<'_>) -> Option<()> {
    let begin = record.parts.topic_at.checked_add(record.parts.topic)?.checked_add(2)?;
    let text = record.data.get(begin..record.parts.end)?;
    std::str::from_utf8(text).ok()?;
    let mut at = 0;
    for end in memchr_iter(2, text).chain([text.len()]) {
        let pair = text.get(at..end)?;
        at = end.checked_add(1)?;
        let Some((name, value)) = memchr(1, pair).and_then(|split| Some((pair.get(..split)?, pair.get(split.checked_add(1)?..)?))) else {
            continue;
        };
        if name.is_empty() || value.is_empty() {
            continue;
        }
        if record.pairs.len() >= PAIRS_MAX || record.pairs.iter().any(|(each, _)| *each == name) {
            return None;
        }
        record.pairs.push((name, value));
    }
    Some(())
}

fn add(kind: Kind, column: &mut Column, record: &Record<'_>, row: usize) -> Option<()> {
    let head = &record.head;
    let [_, _, _, queue_id, flag] = head.first;
    let ([queue_offset, place], [born_ms, store_ms]) = (head.offsets, head.times);
    let microseconds = |ms: i64| ms.clamp(MS_MIN, MS_MAX).checked_mul(1000);
    match column {
        Column::Numbers(out) => match kind {
            Kind::QueueId => out.extend_from_slice(&queue_id.to_ne_bytes()),
            Kind::SysFlag => out.extend_from_slice(&(head.sys_flag & !COMPRESSED).to_ne_bytes()),
            Kind::Flag => out.extend_from_slice(&flag.to_ne_bytes()),
            Kind::Reconsume => out.extend_from_slice(&head.reconsume.to_ne_bytes()),
            Kind::QueueOffset => out.extend_from_slice(&queue_offset.to_ne_bytes()),
            Kind::PhysicalOffset => out.extend_from_slice(&place.to_ne_bytes()),
            Kind::Prepared => out.extend_from_slice(&head.prepared.to_ne_bytes()),
            Kind::Born => out.extend_from_slice(&microseconds(born_ms)?.to_ne_bytes()),
            _ => out.extend_from_slice(&microseconds(store_ms)?.to_ne_bytes()),
        },
        Column::Spans(spans) => {
            if head.sys_flag & COMPRESSED != 0 {
                return None;
            }
            let end = record.parts.body_at.checked_add(record.parts.body)?;
            for place in [record.parts.body_at, end] {
                spans.extend_from_slice(&i32::try_from(place).ok()?.to_ne_bytes());
            }
        }
        Column::Texts(texts, bits, all) => {
            let there = add_text(kind, texts, record)?;
            *all &= there;
            if row % 8 == 0 {
                bits.push(0);
            }
            if let Some(last) = bits.last_mut().filter(|_| there) {
                *last |= 1 << (row % 8);
            }
        }
        Column::Map(offsets, names, values) => {
            for (name, value) in &record.pairs {
                names.add(name)?;
                values.add(value)?;
            }
            let count = (names.offsets.len() / 4).checked_sub(1)?;
            offsets.extend_from_slice(&i32::try_from(count).ok()?.to_ne_bytes());
        }
    }
    Some(())
}

/// Add what a record has; returns whether it has it.
fn add_text(kind: Kind, texts: &mut Texts, record: &Record<'_>) -> Option<bool> {
    let parts = &record.parts;
    match kind {
        Kind::Topic => {
            let topic = record.part(parts.topic_at, parts.topic)?;
            std::str::from_utf8(topic).ok()?;
            texts.add(topic)?;
        }
        Kind::BornHost => {
            let host = record.part(record.at.checked_add(48)?, 8)?;
            let begin = texts.data.len();
            if texts.last_source == host {
                texts.data.extend_from_within(begin.checked_sub(texts.last_size)?..);
            } else {
                let [a, b, c, d, port @ ..] = *host.first_chunk::<8>()?;
                texts.data.extend_from_slice(format!("{a}.{b}.{c}.{d}:{}", i32::from_be_bytes(port)).as_bytes());
                texts.last_source = host.to_vec();
                texts.last_size = texts.data.len().checked_sub(begin)?;
            }
            texts.end()?;
        }
        Kind::Id => match record.value(b"UNIQ_KEY") {
            Some(key) => texts.add(key)?,
            None => {
                let host = record.part(record.at.checked_add(64)?, 8)?;
                let [_, place] = record.head.offsets;
                for byte in host.iter().chain(&place.to_be_bytes()) {
                    texts.data.extend([byte >> 4, byte & 15].map(|half| *b"0123456789ABCDEF".get(usize::from(half)).unwrap_or(&b'0')));
                }
                texts.end()?;
            }
        },
        Kind::Keys | Kind::Tags => {
            let name: &[u8] = if kind == Kind::Keys { b"KEYS" } else { b"TAGS" };
            let value = record.value(name);
            texts.add(value.unwrap_or(&[]))?;
            return Some(value.is_some());
        }
        _ => return None,
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_rows_or_none(
            data in proptest::collection::vec(prop_oneof![Just(0u8), Just(0xFF), Just(2), any::<u8>()], 0..300),
            body in 0i32..60,
        ) {
            let mut data = data;
            let size = i32::try_from(data.len()).unwrap_or(0);
            if data.len() >= 91 {
                data.splice(0..8, [size.to_be_bytes(), record::MAGIC.to_be_bytes()].concat());
                data.splice(20..40, [0; 20]);
                data.splice(84..88, body.to_be_bytes());
            }
            let kinds = [Kind::Topic, Kind::Id, Kind::Keys, Kind::Body, Kind::Properties, Kind::Born];
            if let Some(found) = rows(&data, 0, 1, &kinds, false) {
                prop_assert!(found.count <= 1);
                for column in &found.columns {
                    if let Column::Texts(texts, bits, _) = column {
                        prop_assert!(texts.data.len() <= data.len() + 32 && texts.offsets.len() == 4 * (found.count + 1));
                        prop_assert!(bits.len() == found.count);
                    }
                }
            }
        }
    }
}
