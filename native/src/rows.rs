//! Stored records as columns of Arrow: whole buffers of numbers, offsets, bytes and bits, made in one walk over the records.

use crate::record;

const COMPRESSED: i32 = 1;
/// Years 1 to 9999, in milliseconds.
const MS_MIN: i64 = -62_135_596_800_000;
const MS_MAX: i64 = 253_402_300_799_999;
/// Texts up to so long are copied in one step.
const SHORT: usize = 32;
/// Digits of the place of a record.
const ID_BYTES: usize = 32;
/// Rows after which the lists are given room for all others.
const ROWS_OF_ESTIMATE: usize = 32;
/// Properties of a record, up to which their names are compared each with each.
const PAIRS_MAX: usize = 32;

/// The content of a column.
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

/// The bytes before the body of a record with IPv4 hosts.
type Head = [u8; 88];
/// Where something lies in the records' bytes: from, up to. Four bytes each are enough, as no more bytes are looked at.
type Span = (u32, u32);

/// One record, as far as columns need it. Its pairs begin where those of the one before end.
struct Row {
    at: usize,
    topic: Span,
    body: Span,
    pairs_end: usize,
    id: Option<Span>,
    keys: Option<Span>,
    tags: Option<Span>,
}

/// Records that become rows.
pub struct Rows<'a> {
    data: &'a [u8],
    rows: Vec<Row>,
    /// Names and values of all properties.
    pairs: Vec<(Span, Span)>,
}

/// Sizes of a column's buffers, in the order in which Arrow has them. `None`: one that is left out.
pub type Sizes = Vec<Option<usize>>;

fn span(begin: usize, size: usize) -> Option<Span> {
    Some((u32::try_from(begin).ok()?, u32::try_from(begin.checked_add(size)?).ok()?))
}

fn size_of(span: Span) -> usize {
    usize::try_from(span.1.saturating_sub(span.0)).unwrap_or(usize::MAX)
}

fn total(mut sizes: impl Iterator<Item = usize>) -> Option<usize> {
    sizes.try_fold(0_usize, usize::checked_add)
}

/// Return the records that lie one behind another and have a queue offset from `begin` up to `end`. `None`: they are not all ordinary
/// ones, or (`verify`) the body of one has another CRC than it says.
pub fn rows<'a>(data: &'a [u8], begin: i64, end: i64, kinds: &[Kind], verify: bool) -> Option<Rows<'a>> {
    let mut found = Rows { data, rows: Vec::new(), pairs: Vec::new() };
    let wants_pairs = kinds.iter().any(|kind| matches!(kind, Kind::Id | Kind::Keys | Kind::Tags | Kind::Properties));
    let wants_body = kinds.contains(&Kind::Body);
    let (mut at, mut topic): (_, &[u8]) = (0, &[]);
    let mut small = Vec::new();
    while at < data.len() {
        let parts = record::parts_at(&data, at)?;
        let head = data.get(at..)?.first_chunk::<88>()?;
        if (begin..end).contains(&i64::from_be_bytes(number(head, 20)?)) {
            if parts.hosts != (8, 8) || (wants_body && i32::from_be_bytes(number(head, 36)?) & COMPRESSED != 0) {
                return None;
            }
            if verify && (crc32fast::hash(part(data, parts.body_at, parts.body)?) & 0x7FFF_FFFF).to_be_bytes() != number(head, 8)? {
                return None;
            }
            let named = part(data, parts.topic_at, parts.topic)?;
            if named != topic {
                std::str::from_utf8(named).ok()?;
                topic = named;
            }
            let (topic, body) = (span(parts.topic_at, parts.topic)?, span(parts.body_at, parts.body)?);
            found.rows.push(Row { at, topic, body, pairs_end: found.pairs.len(), id: None, keys: None, tags: None });
            if wants_pairs {
                found.read_pairs(parts.topic_at.checked_add(parts.topic)?.checked_add(2)?, parts.end, &mut small)?;
            }
            if found.rows.len() == ROWS_OF_ESTIMATE {
                make_room(&mut found.rows, parts.end, data.len());
                make_room(&mut found.pairs, parts.end, data.len());
            }
        }
        at = parts.end;
    }
    Some(found)
}

/// Give a list room for as many more as the rest of the bytes takes, when it is like that before.
fn make_room<T>(list: &mut Vec<T>, done: usize, all: usize) {
    let more = list.len().checked_mul(all.saturating_sub(done)).and_then(|product| product.checked_div(done));
    list.reserve(more.unwrap_or(0).saturating_add(64));
}

fn part(data: &[u8], at: usize, size: usize) -> Option<&[u8]> {
    data.get(at..at.checked_add(size)?)
}

fn number<const SIZE: usize>(head: &Head, at: usize) -> Option<[u8; SIZE]> {
    head.get(at..)?.first_chunk().copied()
}

fn int(head: &Head, at: usize) -> Option<[u8; 4]> {
    Some(i32::from_be_bytes(number(head, at)?).to_ne_bytes())
}

fn long(head: &Head, at: usize) -> Option<[u8; 8]> {
    Some(i64::from_be_bytes(number(head, at)?).to_ne_bytes())
}

fn microseconds(head: &Head, at: usize) -> Option<[u8; 8]> {
    Some(i64::from_be_bytes(number(head, at)?).clamp(MS_MIN, MS_MAX).checked_mul(1000)?.to_ne_bytes())
}

/// A host as text, which the next record most often has as well.
#[derive(Default)]
struct HostText {
    host: [u8; 8],
    text: Vec<u8>,
}

impl HostText {
    fn of(&mut self, head: &Head) -> Option<&[u8]> {
        let host = number(head, 48)?;
        if self.text.is_empty() || self.host != host {
            let [a, b, c, d, port @ ..] = host;
            self.text = format!("{a}.{b}.{c}.{d}:{}", i32::from_be_bytes(port)).into_bytes();
            self.host = host;
        }
        Some(&self.text)
    }
}

/// The id of a message without a key: where its record lies, in hex digits.
fn place_id(head: &Head) -> Option<[u8; ID_BYTES]> {
    let mut id = [0; ID_BYTES];
    let place: [u8; 16] = [number::<8>(head, 64)?, number(head, 28)?].concat().try_into().ok()?;
    for (digits, byte) in id.chunks_exact_mut(2).zip(place) {
        digits.copy_from_slice(&[byte >> 4, byte & 15].map(|half| *b"0123456789ABCDEF".get(usize::from(half)).unwrap_or(&b'0')));
    }
    Some(id)
}

impl Rows<'_> {
    /// How many.
    pub fn count(&self) -> usize {
        self.rows.len()
    }

    /// Take the last record's properties apart, between two places of the bytes; `None`: they are no UTF-8, or many, or one is there
    /// twice. `small` is room for finding the separators.
    fn read_pairs(&mut self, begin: usize, end: usize, small: &mut Vec<usize>) -> Option<()> {
        let (first, row) = (self.pairs.len(), self.rows.last_mut()?);
        let text = self.data.get(begin..end)?;
        std::str::from_utf8(text).ok()?;
        find_small(text, small);
        small.push(text.len());
        let (mut at, mut split) = (0, None);
        for mark in small.drain(..) {
            match text.get(mark) {
                Some(&1) => split = split.or(Some(mark)),
                Some(&0) => (),
                _ => {
                    let (pair_at, ends) = (at, split.take().filter(|split| at < *split && split.saturating_add(1) < mark));
                    at = mark.checked_add(1)?;
                    let Some(split) = ends else { continue };
                    let (name, earlier) = (text.get(pair_at..split)?, self.pairs.get(first..)?);
                    if earlier.len() >= PAIRS_MAX || earlier.iter().any(|(each, _)| text_of(self.data, *each) == Some(name)) {
                        return None;
                    }
                    let value_at = split.checked_add(1)?;
                    let value = span(begin.checked_add(value_at)?, mark.checked_sub(value_at)?)?;
                    match name {
                        b"UNIQ_KEY" => row.id = Some(value),
                        b"KEYS" => row.keys = Some(value),
                        b"TAGS" => row.tags = Some(value),
                        _ => (),
                    }
                    self.pairs.push((span(begin.checked_add(pair_at)?, name.len())?, value));
                }
            }
        }
        row.pairs_end = self.pairs.len();
        Some(())
    }

    fn head(&self, row: &Row) -> Option<&Head> {
        self.data.get(row.at..)?.first_chunk()
    }

    /// Return how large the buffers of a column are; `None`: too large for offsets of 32 bits.
    pub fn sizes(&self, kind: Kind) -> Option<Sizes> {
        let offsets = |count: usize| count.checked_add(1)?.checked_mul(4);
        let rows = self.rows.len();
        let (missing, bytes) = match kind {
            Kind::QueueId | Kind::SysFlag | Kind::Flag | Kind::Reconsume => return Some(vec![rows.checked_mul(4)]),
            Kind::QueueOffset | Kind::PhysicalOffset | Kind::Prepared | Kind::Born | Kind::Stored => {
                return Some(vec![rows.checked_mul(8)]);
            }
            Kind::Properties => {
                let names = total(self.pairs.iter().map(|pair| pair.0).map(size_of))?;
                let values = total(self.pairs.iter().map(|pair| pair.1).map(size_of))?;
                i32::try_from(names.max(values)).ok()?;
                let inner = offsets(self.pairs.len());
                return Some(vec![offsets(rows), inner, Some(names), inner, Some(values)]);
            }
            Kind::Topic => (false, total(self.rows.iter().map(|row| row.topic).map(size_of))?),
            Kind::Body => (false, total(self.rows.iter().map(|row| row.body).map(size_of))?),
            Kind::Keys => {
                (self.rows.iter().any(|row| row.keys.is_none()), total(self.rows.iter().filter_map(|row| row.keys).map(size_of))?)
            }
            Kind::Tags => {
                (self.rows.iter().any(|row| row.tags.is_none()), total(self.rows.iter().filter_map(|row| row.tags).map(size_of))?)
            }
            Kind::Id => (false, total(self.rows.iter().map(|row| row.id.map_or(ID_BYTES, size_of)))?),
            Kind::BornHost => {
                let mut host = HostText::default();
                let mut sizes = self.rows.iter().map(|row| Some(host.of(self.head(row)?)?.len()));
                (false, sizes.try_fold(0_usize, |all, size| all.checked_add(size?))?)
            }
        };
        i32::try_from(bytes).ok()?;
        Some(vec![missing.then_some(rows.div_ceil(8)), offsets(rows), Some(bytes)])
    }

    /// Fill a column's buffers, which hold zeros and are as large as `sizes` says, but for those that are left out. `None`: they are not.
    pub fn fill(&self, kind: Kind, buffers: &mut [&mut [u8]]) -> Option<()> {
        match (kind, buffers) {
            (Kind::QueueId, [out]) => self.numbers(out, |head| int(head, 12)),
            (Kind::Flag, [out]) => self.numbers(out, |head| int(head, 16)),
            (Kind::QueueOffset, [out]) => self.numbers(out, |head| long(head, 20)),
            (Kind::PhysicalOffset, [out]) => self.numbers(out, |head| long(head, 28)),
            (Kind::SysFlag, [out]) => {
                self.numbers(out, |head| Some((i32::from_be_bytes(number(head, 36)?) & !COMPRESSED).to_ne_bytes()))
            }
            (Kind::Born, [out]) => self.numbers(out, |head| microseconds(head, 40)),
            (Kind::Stored, [out]) => self.numbers(out, |head| microseconds(head, 56)),
            (Kind::Reconsume, [out]) => self.numbers(out, |head| int(head, 72)),
            (Kind::Prepared, [out]) => self.numbers(out, |head| long(head, 76)),
            (Kind::Properties, [offsets, name_offsets, names, value_offsets, values]) => {
                let ends = offsets.chunks_exact_mut(4).skip(1);
                for (end, row) in ends.zip(&self.rows) {
                    end.copy_from_slice(&i32::try_from(row.pairs_end).ok()?.to_ne_bytes());
                }
                self.texts(name_offsets, names, self.pairs.iter().map(|pair| pair.0))?;
                self.texts(value_offsets, values, self.pairs.iter().map(|pair| pair.1))
            }
            (Kind::Topic, [offsets, out]) => self.spans(offsets, out, |row| Some(row.topic)),
            (Kind::Body, [offsets, out]) => self.spans(offsets, out, |row| Some(row.body)),
            (Kind::Keys, [offsets, out]) => self.spans(offsets, out, |row| row.keys),
            (Kind::Tags, [offsets, out]) => self.spans(offsets, out, |row| row.tags),
            (Kind::Keys, [bits, offsets, out]) => {
                self.bits(bits, |row| row.keys.is_some())?;
                self.spans(offsets, out, |row| row.keys)
            }
            (Kind::Tags, [bits, offsets, out]) => {
                self.bits(bits, |row| row.tags.is_some())?;
                self.spans(offsets, out, |row| row.tags)
            }
            (Kind::Id, [offsets, out]) => self.ids(offsets, out),
            (Kind::BornHost, [offsets, out]) => self.hosts(offsets, out),
            _ => None,
        }
    }

    fn numbers<const SIZE: usize>(&self, out: &mut [u8], read: impl Fn(&Head) -> Option<[u8; SIZE]>) -> Option<()> {
        for (out, row) in out.chunks_exact_mut(SIZE).zip(&self.rows) {
            out.copy_from_slice(&read(self.head(row)?)?);
        }
        Some(())
    }

    fn bits(&self, out: &mut [u8], is_there: impl Fn(&Row) -> bool) -> Option<()> {
        for (out, rows) in out.iter_mut().zip(self.rows.chunks(8)) {
            *out = rows.iter().rev().fold(0, |bits, row| bits << 1 | u8::from(is_there(row)));
        }
        Some(())
    }

    fn spans(&self, offsets: &mut [u8], out: &mut [u8], span: impl Fn(&Row) -> Option<Span>) -> Option<()> {
        self.texts(offsets, out, self.rows.iter().map(|row| span(row).unwrap_or_default()))
    }

    fn texts(&self, offsets: &mut [u8], out: &mut [u8], spans: impl Iterator<Item = Span>) -> Option<()> {
        let mut filled = Filled { out, at: 0 };
        for (end, span) in offsets.chunks_exact_mut(4).skip(1).zip(spans) {
            filled.add_part(self.data, span, end)?;
        }
        Some(())
    }

    fn ids(&self, offsets: &mut [u8], out: &mut [u8]) -> Option<()> {
        let mut filled = Filled { out, at: 0 };
        for (end, row) in offsets.chunks_exact_mut(4).skip(1).zip(&self.rows) {
            match row.id {
                Some(id) => filled.add_part(self.data, id, end)?,
                None => filled.add(&place_id(self.head(row)?)?, end)?,
            }
        }
        Some(())
    }

    fn hosts(&self, offsets: &mut [u8], out: &mut [u8]) -> Option<()> {
        let (mut filled, mut host) = (Filled { out, at: 0 }, HostText::default());
        for (end, row) in offsets.chunks_exact_mut(4).skip(1).zip(&self.rows) {
            filled.add(host.of(self.head(row)?)?, end)?;
        }
        Some(())
    }
}

/// Find where bytes of 0, 1 and 2 stand. They come every few bytes, so that eight are looked at in one step.
fn find_small(text: &[u8], places: &mut Vec<usize>) {
    places.clear();
    let (words, mut at) = (text.chunks_exact(8), 0_usize);
    let rest = words.remainder();
    for word in words {
        let mut marks = small_bytes(word.first_chunk().copied().unwrap_or_default());
        while marks != 0 {
            places.push(at | usize::try_from(marks.trailing_zeros() >> 3).unwrap_or(0));
            marks &= marks.wrapping_sub(1);
        }
        at = at.saturating_add(8);
    }
    places.extend(rest.iter().zip(at..).filter(|(byte, _)| **byte < 3).map(|(_, at)| at));
}

/// Return the top bit of each byte below 3.
fn small_bytes(word: [u8; 8]) -> u64 {
    let word = u64::from_le_bytes(word);
    let three_or_more = (word & 0x7F7F_7F7F_7F7F_7F7F).wrapping_add(0x7D7D_7D7D_7D7D_7D7D);
    !(three_or_more | word) & 0x8080_8080_8080_8080
}

fn text_of(data: &[u8], (begin, end): Span) -> Option<&[u8]> {
    data.get(usize::try_from(begin).ok()?..usize::try_from(end).ok()?)
}

/// A buffer of texts, as far as it is filled.
struct Filled<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Filled<'_> {
    /// Add a text that lies in some bytes, and say where it ends.
    fn add_part(&mut self, data: &[u8], span: Span, end: &mut [u8]) -> Option<()> {
        let out = self.out.get_mut(self.at..).and_then(|out| out.first_chunk_mut::<SHORT>());
        let text = data.get(usize::try_from(span.0).ok()?..).and_then(|text| text.first_chunk::<SHORT>());
        let (size, (Some(out), Some(text))) = (size_of(span), (out, text)) else { return self.add(text_of(data, span)?, end) };
        if size > SHORT {
            return self.add(text_of(data, span)?, end);
        }
        *out = *text; // what is too much is written over by the next text: so many bytes at once cost less than their exact number
        self.end(self.at.checked_add(size)?, end)
    }

    /// Add a text, and say where it ends.
    fn add(&mut self, text: &[u8], end: &mut [u8]) -> Option<()> {
        let after = self.at.checked_add(text.len())?;
        self.out.get_mut(self.at..after)?.copy_from_slice(text);
        self.end(after, end)
    }

    fn end(&mut self, at: usize, end: &mut [u8]) -> Option<()> {
        self.at = at;
        end.copy_from_slice(&i32::try_from(at).ok()?.to_ne_bytes());
        Some(())
    }
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
            let kinds = [Kind::Topic, Kind::Id, Kind::Keys, Kind::Body, Kind::Properties, Kind::Born, Kind::BornHost];
            if let Some(found) = rows(&data, 0, 1, &kinds, false) {
                prop_assert!(found.count() <= 1);
                for kind in kinds {
                    let sizes: Vec<usize> = found.sizes(kind).unwrap_or_default().into_iter().flatten().collect();
                    prop_assert!(!sizes.is_empty() && sizes.iter().sum::<usize>() <= data.len() + 64);
                    let mut all: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0; *size]).collect();
                    let mut buffers: Vec<&mut [u8]> = all.iter_mut().map(Vec::as_mut_slice).collect();
                    prop_assert!(found.fill(kind, &mut buffers).is_some());
                }
            }
        }
    }
}
