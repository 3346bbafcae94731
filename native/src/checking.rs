//! Records that lie one behind another, checked whole: what queues and the key index must have of them.

use std::collections::HashMap;

use crate::keys;
use crate::record::{self, ENTRY_BYTES};

/// Bits of sysFlag of what belongs to a transaction.
const TRANSACTION: i32 = 0xC;
/// The bit of half messages and of what rolls them back: no queue has them.
const PREPARED: i32 = 4;
/// The bits of a message that a commit made visible.
const COMMIT: i32 = 8;
/// Kinds of records that change the state of a transaction: half messages, records of decisions, committed messages.
const KINDS: (i32, i32, i32) = (0, 1, 2);

/// Entries of one queue, from an offset on.
#[derive(Debug, PartialEq, Eq)]
pub struct QueueEntries<'a> {
    /// Its topic.
    pub topic: &'a str,
    /// Its id.
    pub queue_id: i32,
    /// The offset of the first.
    pub first: i64,
    /// The entries.
    pub entries: Vec<u8>,
}

/// The result of checking records that lie one behind another.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Checked<'a> {
    /// How many bytes they have.
    pub size: usize,
    /// Their entries, by queue, in the order in which the queues come.
    pub queues: Vec<QueueEntries<'a>>,
    /// Their keys, packed.
    pub keys: Vec<u8>,
}

/// The records that a slave may append, one behind another.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Copied<'a> {
    /// Where they end.
    pub end: usize,
    /// Offset in the log and store time of the last.
    pub last: (i64, i64),
    /// Their entries, by queue, in the order in which the queues come.
    pub queues: Vec<QueueEntries<'a>>,
    /// Those that change the state of a transaction, in order.
    pub transactions: Vec<TransactionRun>,
}

/// Records of one kind that change states of transactions, and that no record of another kind lies between. Half messages of a run
/// are of one producer group, were stored in one second, and follow each other in their queue.
#[derive(Debug, PartialEq, Eq)]
pub struct TransactionRun {
    /// Which of `KINDS`.
    pub kind: i32,
    /// When the first was stored, in seconds.
    pub store_s: u32,
    /// Hash of the producer group of half messages, else 0.
    pub group: i32,
    /// Queue offsets of half messages; places of the half messages of committed ones; half messages that op records name, -1 if
    /// the body is not one number.
    pub numbers: Vec<i64>,
    /// Places of the records, as entries of a queue with 0 for a tag.
    pub entries: Vec<u8>,
}

/// Where the entries of each queue are.
type Indexes<'a> = HashMap<(&'a [u8], i32), usize>;

/// A record that is whole.
struct Whole<'a> {
    sys_flag: i32,
    topic: &'a [u8],
    queue_id: i32,
    queue_offset: i64,
    place: i64,
    store_ms: i64,
    prepared: i64,
    body: &'a [u8],
    properties: &'a [u8],
    size: usize,
    end: usize,
}

/// Check the records that lie one behind another, up to the first that is not whole and usual; `data` begins at the offset `first`.
pub fn checked_records<'a>(data: &'a [u8], first: i64, apart: &[impl AsRef<[u8]>]) -> Checked<'a> {
    let mut found = Checked::default();
    let mut indexes = HashMap::new();
    while let Some(record) = place_behind(first, found.size).and_then(|place| whole_at(data, found.size, place)) {
        if record.sys_flag & TRANSACTION != 0 || enter(&mut found.queues, &mut indexes, &record, apart).is_none() {
            break;
        }
        keys::pack_keys(record.topic, record.properties, (record.place, record.store_ms), &mut found.keys);
        found.size = record.end;
    }
    found
}

/// Check the records of up to `size_max` bytes that lie one behind another from `begin` on, where the offset `first` of the log is.
/// `topics` are those of half messages and of decisions.
pub fn copied_records<'a>(
    data: &'a [u8],
    begin: usize,
    first: i64,
    apart: &[impl AsRef<[u8]>],
    topics: &[impl AsRef<[u8]>; 2],
    size_max: usize,
) -> Copied<'a> {
    let mut found = Copied { end: begin, ..Copied::default() };
    let mut indexes = HashMap::new();
    let next = |end: usize| whole_at(data, end, place_behind(first, end.checked_sub(begin)?)?);
    while let Some(record) = next(found.end).filter(|record| record.size <= size_max) {
        let taken = if record.sys_flag & PREPARED == 0 {
            enter(&mut found.queues, &mut indexes, &record, apart)
        } else {
            text_of(record.topic, apart).map(|_| ())
        };
        if taken.is_none() {
            break;
        }
        enter_transaction(&mut found.transactions, &record, topics);
        found.last = (record.place, record.store_ms);
        found.end = record.end;
    }
    found
}

/// Add a record to the runs, if it changes the state of a transaction.
fn enter_transaction(runs: &mut Vec<TransactionRun>, record: &Whole<'_>, topics: &[impl AsRef<[u8]>; 2]) -> Option<()> {
    let [half, op] = topics;
    let (kind, number, group) = match record.sys_flag & TRANSACTION {
        COMMIT => (KINDS.2, record.prepared, 0),
        0 if record.queue_id != 0 => return None,
        0 if record.topic == half.as_ref() => (KINDS.0, record.queue_offset, keys::group_hash(record.properties)),
        0 if record.topic == op.as_ref() && keys::has_tag(record.properties, b"d") => (KINDS.1, number_of(record.body), 0),
        _ => return None,
    };
    let store_s = u32::try_from(record.store_ms.div_euclid(1000) & 0xFFFF_FFFF).ok()?;
    let size = u32::try_from(record.size).ok()?;
    let continues = runs.last().is_some_and(|run| {
        run.kind == kind
            && (kind != KINDS.0
                || (run.store_s == store_s
                    && run.group == group
                    && run.numbers.last().and_then(|last| last.checked_add(1)) == Some(number)))
    });
    if !continues {
        runs.push(TransactionRun { kind, store_s, group, numbers: Vec::new(), entries: Vec::new() });
    }
    let run = runs.last_mut()?;
    run.numbers.push(number);
    run.entries.extend_from_slice(&record.place.to_be_bytes());
    run.entries.extend_from_slice(&size.to_be_bytes());
    run.entries.extend_from_slice(&[0; 8]);
    Some(())
}

/// Return the number that a body is; -1 for another, and for one that is too large.
fn number_of(body: &[u8]) -> i64 {
    let digits = body.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(body).ok().filter(|_| digits && body.len() < 20).and_then(|text| text.parse().ok()).unwrap_or(-1)
}

fn place_behind(first: i64, size: usize) -> Option<i64> {
    first.checked_add(i64::try_from(size).ok()?)
}

/// Return the record at a place of the data, if it has its lengths, its checksum and its place in the log.
fn whole_at(data: &[u8], at: usize, expected: i64) -> Option<Whole<'_>> {
    let parts = record::parts_at(&data, at)?;
    let head = record::head_at(data, at, parts.hosts)?;
    let [_, _, crc, queue_id, _] = head.first;
    let ([queue_offset, place], [_, store_ms]) = (head.offsets, head.times);
    let properties_at = parts.topic_at.checked_add(parts.topic)?;
    if queue_id < 0 || queue_offset < 0 || store_ms <= 0 || place != expected {
        return None;
    }
    let body = data.get(parts.body_at..parts.body_at.checked_add(parts.body)?)?;
    if i64::from(crc32fast::hash(body) & 0x7FFF_FFFF) != i64::from(crc) {
        return None;
    }
    Some(Whole {
        sys_flag: head.sys_flag,
        topic: data.get(parts.topic_at..properties_at)?,
        queue_id,
        queue_offset,
        place,
        store_ms,
        prepared: head.prepared,
        body,
        properties: data.get(properties_at.checked_add(2)?..parts.end)?,
        size: parts.end.checked_sub(at)?,
        end: parts.end,
    })
}

/// Return a topic as text; `None`: it is none, or one of those that are looked at apart.
fn text_of<'a>(topic: &'a [u8], apart: &[impl AsRef<[u8]>]) -> Option<&'a str> {
    let text = std::str::from_utf8(topic).ok().filter(|text| !text.is_empty())?;
    (!apart.iter().any(|other| other.as_ref() == topic)).then_some(text)
}

/// Enter a record; `None`: it is of a topic that is looked at apart or is no text, or it does not continue its queue.
fn enter<'a>(
    queues: &mut Vec<QueueEntries<'a>>,
    indexes: &mut Indexes<'a>,
    record: &Whole<'a>,
    apart: &[impl AsRef<[u8]>],
) -> Option<()> {
    let index = match indexes.get(&(record.topic, record.queue_id)) {
        Some(index) => *index,
        None => {
            let topic = text_of(record.topic, apart)?;
            let index = queues.len();
            let (queue_id, first) = (record.queue_id, record.queue_offset);
            queues.push(QueueEntries { topic, queue_id, first, entries: Vec::new() });
            indexes.insert((record.topic, record.queue_id), index);
            index
        }
    };
    let queue = queues.get_mut(index)?;
    let count = i64::try_from(queue.entries.len() / ENTRY_BYTES).ok()?;
    if queue.first.checked_add(count)? != record.queue_offset {
        return None;
    }
    let size = u32::try_from(record.size).ok()?;
    queue.entries.extend_from_slice(&record.place.to_be_bytes());
    queue.entries.extend_from_slice(&size.to_be_bytes());
    queue.entries.extend_from_slice(&keys::tag_code(record.properties).to_be_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn of_any_bytes_some_records_are_usual(
            data in proptest::collection::vec(prop_oneof![Just(0u8), Just(0xFF), any::<u8>()], 0..300),
            first in any::<i64>(),
        ) {
            let mut data = data;
            if let Some(place) = data.get_mut(4..8) {
                place.copy_from_slice(&record::MAGIC.to_be_bytes());
            }
            let found = checked_records(&data, first, &["T"]);
            prop_assert!(found.size <= data.len());
            prop_assert_eq!(found.queues.is_empty(), found.size == 0);
            let begin = data.len() / 2;
            let copied = copied_records(&data, begin, first, &["T"], &["H", "O"], 200);
            prop_assert!((begin..=data.len()).contains(&copied.end));
        }
    }
}
