//! Filters' functions: queue entries with a wanted tag, the properties of records, and which of these may match an expression.

use std::collections::{HashMap, HashSet};

use memchr::{memchr, memchr_iter, memmem};

use crate::record::{ENTRY_BYTES, MAGIC_V2};

/// The size in entries that point at no record.
const FILLER_SIZE: i32 = i32::MAX;
/// The least that a record takes.
const RECORD_BYTES_MIN: usize = 91;
/// Bytes that all conditions of an expression together pass over in one message; more is left to the caller, who makes a table first.
const WORK_MAX: usize = 128 * 1024;
/// The most that a record takes before its body.
const HEAD_BYTES_MAX: usize = 112;
/// A larger record is not copied with its body: its head first, then what is behind the body.
const COPIED_WHOLE_MAX: usize = 2048;
/// Bytes between records that are copied with them, for less than a copy of its own would cost.
const GAP_BYTES_MAX: usize = 2048;
/// Bytes copied at once.
const COPIED_MAX: usize = 64 * 1024;
/// Properties handed out at once, and the bytes with which they are enough.
const HANDED_MAX: usize = 512;
const HANDED_BYTES_MAX: usize = 256 * 1024;
/// With more names than this a pair's is looked up in a table.
const COMPARED_NAMES_MAX: usize = 4;
/// Work of a bulk filter is counted in parts of a step, of a nanosecond or two each.
const WORK_OF_STEP: u64 = 100;
/// Finding a record and its properties.
const WORK_OF_MESSAGE: u64 = 20;
/// A copy, and how many bytes of it add one.
const WORK_OF_PIECE: u64 = 160;
const COPIED_OF_WORK: u64 = 10;
/// A pair that is passed, by comparing names or with a table.
const WORK_OF_PAIR: u64 = 5;
const WORK_OF_PAIR_IN_TABLE: u64 = 20;
/// A condition, and how many bytes of a value that it reads, or that are searched for what each match contains, add one.
const WORK_OF_CONDITION: u64 = 5;
const READ_OF_WORK: u64 = 2;
/// Digits of numbers that are compared here; what is longer is left to the caller.
const DIGITS_MAX: usize = 9;

/// A queue entry: where its record lies, how long that is, its tag code.
fn entry_at(entries: &[u8], index: usize) -> Option<(i64, i32, i64)> {
    let entry = entries.get(index.checked_mul(ENTRY_BYTES)?..)?.first_chunk::<ENTRY_BYTES>()?;
    let [p0, p1, p2, p3, p4, p5, p6, p7, s0, s1, s2, s3, tag @ ..] = *entry;
    let place = i64::from_be_bytes([p0, p1, p2, p3, p4, p5, p6, p7]);
    Some((place, i32::from_be_bytes([s0, s1, s2, s3]), i64::from_be_bytes(tag)))
}

fn is_real(size: i32) -> bool {
    0 != size && size != FILLER_SIZE
}

/// Return the indexes, rising, of the first `at_most` entries of records with one of these tag codes.
pub fn tag_matches(entries: &[u8], codes: &[i64], at_most: usize) -> Vec<usize> {
    let many: HashSet<i64> = if codes.len() > 8 { codes.iter().copied().collect() } else { HashSet::new() };
    let wanted = |code: i64| if many.is_empty() { codes.contains(&code) } else { many.contains(&code) };
    let count = entries.len() / ENTRY_BYTES;
    let found = (0..count).filter(|index| entry_at(entries, *index).is_some_and(|(_, size, code)| wanted(code) && is_real(size)));
    found.take(at_most).collect()
}

// ---------------------------------------------------------------- records

/// Bytes that others may write meanwhile: pieces of them are copied.
pub trait Area {
    /// A copy.
    type Piece: AsRef<[u8]>;
    /// How many there are.
    fn len(&self) -> usize;
    /// Return a copy of those between two places; `None`: they are not all there.
    fn piece(&self, begin: usize, end: usize) -> Option<Self::Piece>;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> Area for &'a [u8] {
    type Piece = &'a [u8];

    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn piece(&self, begin: usize, end: usize) -> Option<&'a [u8]> {
        self.get(begin..end)
    }
}

/// An area, and what was copied of it last.
struct Window<'a, A: Area> {
    area: &'a A,
    begin: usize,
    piece: Option<A::Piece>,
    /// The cost of the copies.
    work: u64,
}

impl<'a, A: Area> Window<'a, A> {
    fn of(area: &'a A) -> Self {
        Window { area, begin: 0, piece: None, work: 0 }
    }

    /// Return the bytes between two places. Where they are not copied yet, all up to `upto` are.
    fn get(&mut self, begin: usize, end: usize, upto: usize) -> Option<&[u8]> {
        let size = self.piece.as_ref().map_or(0, |piece| piece.as_ref().len());
        if begin < self.begin || end > self.begin.saturating_add(size) {
            let upto = upto.max(end);
            self.piece = Some(self.area.piece(begin, upto)?);
            self.begin = begin;
            self.work = self.work.saturating_add(WORK_OF_PIECE).saturating_add(wide(upto.saturating_sub(begin)) / COPIED_OF_WORK);
        }
        self.piece.as_ref()?.as_ref().get(begin.checked_sub(self.begin)?..end.checked_sub(self.begin)?)
    }
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Where the records of entries lie in an area.
struct Places<'a> {
    entries: &'a [u8],
    base: i64,
    area_bytes: usize,
}

impl Places<'_> {
    /// Where a record begins and ends; `None`: it does not begin in the area.
    fn of(&self, index: usize) -> Option<(usize, usize)> {
        let (place, size, _) = entry_at(self.entries, index).filter(|(_, size, _)| 0 < *size && is_real(*size))?;
        let begin = usize::try_from(place.checked_sub(self.base)?).ok().filter(|begin| *begin < self.area_bytes)?;
        Some((begin, begin.checked_add(usize::try_from(size).ok()?)?))
    }

    /// How far a copy that begins with a record reaches: over its neighbours, or of a large record over its head.
    fn upto(&self, index: usize, begin: usize, end: usize) -> usize {
        if end.saturating_sub(begin) > COPIED_WHOLE_MAX {
            return begin.saturating_add(HEAD_BYTES_MAX).min(end);
        }
        let (mut upto, mut index) = (end, index);
        loop {
            index = index.saturating_add(1);
            let Some((next, behind)) = self.of(index) else { return upto };
            let near = upto <= next && next.saturating_sub(upto) <= GAP_BYTES_MAX;
            let small = behind.saturating_sub(next) <= COPIED_WHOLE_MAX && behind.saturating_sub(begin) <= COPIED_MAX;
            if !near || !small || behind > self.area_bytes {
                return upto;
            }
            upto = behind;
        }
    }
}

/// Return the properties of the record that lies between two places; `None`: it makes no sense.
fn block_of<'a, A: Area>(window: &'a mut Window<'_, A>, begin: usize, end: usize, upto: usize) -> Option<&'a [u8]> {
    if end.checked_sub(begin)? < RECORD_BYTES_MIN {
        return None;
    }
    let head = window.get(begin, begin.checked_add(HEAD_BYTES_MAX)?.min(end), upto)?;
    let wide = head.get(7) == MAGIC_V2.to_be_bytes().last();
    let flag = head.get(39)?;
    let hosts = [0x10, 0x20].iter().filter(|bit| flag & **bit != 0).count();
    let behind = 88_usize.checked_add(hosts.checked_mul(12)?)?;
    let body = i32::from_be_bytes(*head.get(behind.checked_sub(4)?..)?.first_chunk()?);
    let topic_at = begin.checked_add(behind)?.checked_add(usize::try_from(body).ok()?)?;
    if topic_at > end.checked_sub(3)? {
        return None;
    }
    let tail = window.get(topic_at, end, end)?;
    let [high, low] = *tail.first_chunk()?;
    tail.get(if wide { usize::from(u16::from_be_bytes([high, low])).checked_add(4)? } else { usize::from(high).checked_add(3)? }..)
}

/// The bound of what tests may cost.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Steps in all. The message with which they are used up is the last.
    pub steps: i64,
    /// Steps that somebody else's test of a message costs.
    pub message: u64,
    /// Steps that each 100 bytes of its properties add to that.
    pub weight: u64,
    /// Behind so many that match surely the others are of no use.
    pub at_most: usize,
}

/// The result of a bulk filter.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Filtered {
    /// Indexes, rising, of those that match.
    pub sure: Vec<usize>,
    /// Indexes, rising, of those that somebody else must test.
    pub unsure: Vec<usize>,
    /// The properties of these.
    pub blocks: Vec<Vec<u8>>,
    /// How many it has looked at.
    pub looked: usize,
    /// Steps that all cost, somebody else's tests included.
    pub spent: i64,
}

impl BulkFilter {
    /// Look at the records of entries, at one at least; `area` begins at the offset `base` of the log. Ends before an entry whose
    /// record is not all in the area, but for the first, of which it takes what is there.
    pub fn records(&self, area: &impl Area, base: i64, entries: &[u8], room: Room) -> Filtered {
        let places = Places { entries, base, area_bytes: area.len() };
        let (mut found, mut window, mut values) = (Filtered::default(), Window::of(area), Values::default());
        let (mut work, mut handed, mut copied) = (0_u64, 0_usize, 0..0);
        while let Some((begin, end)) = places.of(found.looked).filter(|(_, end)| found.looked == 0 || *end <= places.area_bytes) {
            let end = end.min(places.area_bytes);
            if begin < copied.start || copied.end < end {
                copied = begin..places.upto(found.looked, begin, end);
            }
            let block = block_of(&mut window, begin, end, copied.end).unwrap_or(&[]);
            work = work.saturating_add(WORK_OF_MESSAGE);
            match self.test(block, &mut values, &mut work) {
                Some(true) => found.sure.push(found.looked),
                Some(false) => {}
                None => {
                    let others =
                        room.message.saturating_mul(WORK_OF_STEP).saturating_add(wide(block.len()).saturating_mul(room.weight));
                    (work, handed) = (work.saturating_add(others), handed.saturating_add(block.len()));
                    found.unsure.push(found.looked);
                    found.blocks.push(block.to_vec());
                }
            }
            found.looked = found.looked.saturating_add(1);
            found.spent = i64::try_from(work.saturating_add(window.work).div_ceil(WORK_OF_STEP)).unwrap_or(i64::MAX);
            let enough = found.sure.len() >= room.at_most || found.unsure.len() >= HANDED_MAX || handed >= HANDED_BYTES_MAX;
            if enough || found.spent >= room.steps {
                break;
            }
        }
        found
    }
}

// ---------------------------------------------------------------- expressions

/// How a number is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Above it.
    Greater,
    /// Above it or equal.
    GreaterOrEqual,
    /// Below it.
    Less,
    /// Below it or equal.
    LessOrEqual,
    /// Equal.
    Equal,
}

impl Sign {
    /// Return the sign of the same comparison with its sides exchanged.
    pub fn turned(self) -> Self {
        match self {
            Sign::Greater => Sign::Less,
            Sign::GreaterOrEqual => Sign::LessOrEqual,
            Sign::Less => Sign::Greater,
            Sign::LessOrEqual => Sign::GreaterOrEqual,
            Sign::Equal => Sign::Equal,
        }
    }
}

/// The text or number that a property is searched for.
pub enum Search {
    /// A text anywhere.
    Contains(Box<memmem::Finder<'static>>),
    /// A text at its beginning.
    StartsWith(Vec<u8>),
    /// A text at its end.
    EndsWith(Vec<u8>),
}

/// Whether a text holds U+FFFD, which bytes that are no UTF-8 are equal to.
pub fn is_mended(text: &[u8]) -> bool {
    memmem::find(text, "\u{fffd}".as_bytes()).is_some()
}

/// Return what searches for a text.
pub fn finder(text: &[u8]) -> memmem::Finder<'static> {
    memmem::Finder::new(text).into_owned()
}

/// A number of an expression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A whole one.
    Whole(i64),
    /// Another.
    Double(f64),
}

/// A condition. Properties are given by the numbers of their names.
pub enum Node {
    /// AND.
    All(Vec<Node>),
    /// OR.
    Any(Vec<Node>),
    /// NOT.
    Not(Box<Node>),
    /// A property against a number.
    Number(usize, Sign, Number),
    /// A property that is a text.
    Text(usize, Vec<u8>),
    /// A property that is one of some texts, or (true) none of them.
    In(usize, Texts, bool),
    /// A property that is not there.
    Null(usize),
    /// A property as a condition.
    Bare(usize),
    /// A property that holds a text, or (true) does not.
    Search(usize, Search, bool),
    /// Something else.
    Unsure,
}

/// Texts of a list.
pub struct Texts {
    texts: HashSet<Vec<u8>>,
    lengths: Vec<usize>,
}

impl Texts {
    /// Make a list ready.
    pub fn of(texts: HashSet<Vec<u8>>) -> Self {
        let mut lengths: Vec<usize> = texts.iter().map(Vec::len).collect();
        lengths.sort_unstable();
        lengths.dedup();
        Texts { texts, lengths }
    }

    /// Whether a value is one of them. One of another length than theirs is not read.
    fn contain(&self, value: &[u8]) -> bool {
        self.lengths.binary_search(&value.len()).is_ok() && self.texts.contains(value)
    }
}

/// The names of the properties that an expression looks at, each with 0x01 behind it, as it is stored.
#[derive(Default)]
pub struct Names {
    all: Vec<Vec<u8>>,
    numbers: HashMap<Vec<u8>, usize>,
}

impl Names {
    /// Return the number of a name.
    pub fn number(&mut self, name: Vec<u8>) -> usize {
        let next = self.all.len();
        *self.numbers.entry(name).or_insert_with_key(|name| {
            self.all.push(name.clone());
            next
        })
    }

    fn are_compared(&self) -> bool {
        self.all.len() <= COMPARED_NAMES_MAX
    }

    /// Return the number of a pair's name and its length; `None`: nobody asks for it.
    fn of_pair(&self, pair: &[u8]) -> Option<(usize, usize)> {
        if self.are_compared() {
            return self.all.iter().enumerate().find(|(_, name)| pair.starts_with(name)).map(|(number, name)| (number, name.len()));
        }
        let length = memchr(1, pair)?.checked_add(1)?;
        self.numbers.get(pair.get(..length)?).map(|number| (*number, length))
    }
}

/// Where the values of the names lie in a block, each from a place to another; an empty one is not there.
#[derive(Default)]
struct Values(Vec<(usize, usize)>);

impl Values {
    /// Find the last values that are not empty, in one pass over a block.
    fn find(&mut self, names: &Names, block: &[u8], work: &mut u64) {
        self.0.clear();
        self.0.resize(names.all.len(), (0, 0));
        let each = if names.are_compared() { WORK_OF_PAIR } else { WORK_OF_PAIR_IN_TABLE };
        let mut at = 0;
        for end in memchr_iter(2, block).chain([block.len()]) {
            let pair = block.get(at..end).unwrap_or(&[]);
            let named = names.of_pair(pair).filter(|(_, length)| *length < pair.len());
            if let Some((value, length)) = named.and_then(|(number, length)| Some((self.0.get_mut(number)?, length))) {
                *value = (at.saturating_add(length), end);
            }
            at = end.saturating_add(1);
            *work = work.saturating_add(each);
        }
    }
}

/// A block of properties whose values were found.
struct Block<'a> {
    bytes: &'a [u8],
    values: &'a Values,
    /// Bytes of values that conditions were given.
    read: usize,
}

impl<'a> Block<'a> {
    fn value(&mut self, number: usize) -> Option<&'a [u8]> {
        let (begin, end) = self.values.0.get(number)?;
        let value = self.bytes.get(*begin..*end).filter(|value| !value.is_empty())?;
        self.read = self.read.saturating_add(value.len());
        Some(value)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Truth {
    True,
    False,
    Null,
    Unsure,
}

fn truth(value: bool) -> Truth {
    if value { Truth::True } else { Truth::False }
}

impl Node {
    /// Bytes that the properties of each match contain: to look for them first rejects most of the other messages.
    fn literal(&self, names: &Names) -> Option<Vec<u8>> {
        let with_name = |number: &usize, text: &[u8]| Some([names.all.get(*number)?, text].concat());
        match self {
            Node::All(parts) => parts.iter().filter_map(|part| part.literal(names)).max_by_key(Vec::len),
            Node::Text(name, text) | Node::Search(name, Search::StartsWith(text), false) => with_name(name, text),
            _ => None,
        }
    }

    /// How many conditions there are that look for a property.
    pub fn conditions(&self) -> usize {
        match self {
            Node::All(parts) | Node::Any(parts) => parts.iter().map(Node::conditions).fold(0, usize::saturating_add),
            Node::Not(of) => of.conditions(),
            _ => 1,
        }
    }

    fn test(&self, block: &mut Block<'_>) -> Truth {
        match self {
            Node::All(parts) => first_of(parts, block, Truth::False, Truth::True),
            Node::Any(parts) => first_of(parts, block, Truth::True, Truth::False),
            Node::Not(of) => match of.test(block) {
                Truth::True => Truth::False,
                Truth::False => Truth::True,
                other => other,
            },
            Node::Number(name, sign, number) => block.value(*name).map_or(Truth::Null, |value| against(value, *sign, *number)),
            Node::Text(name, wanted) => match block.value(*name) {
                None => Truth::Null,
                Some(value) if value == wanted => Truth::True,
                Some(value) if value.is_ascii() => Truth::False,
                Some(_) => Truth::Unsure, // what is no UTF-8 may be the same text
            },
            Node::In(name, texts, negated) => match block.value(*name) {
                None => Truth::Null,
                Some(value) => truth(texts.contain(value) != *negated),
            },
            Node::Null(name) => truth(block.value(*name).is_none()),
            Node::Bare(name) => block.value(*name).map_or(Truth::Null, |_| Truth::False),
            Node::Search(name, search, negated) => {
                let finds = |value: &[u8]| match search {
                    Search::Contains(text) => text.find(value).is_some(),
                    Search::StartsWith(text) => value.starts_with(text),
                    Search::EndsWith(text) => value.ends_with(text),
                };
                truth(block.value(*name).is_some_and(|value| finds(value) != *negated))
            }
            Node::Unsure => Truth::Unsure,
        }
    }
}

/// AND and OR, from left to right: the first part that is `decides` says it.
fn first_of(parts: &[Node], block: &mut Block<'_>, decides: Truth, otherwise: Truth) -> Truth {
    let mut found = otherwise;
    for part in parts {
        match part.test(block) {
            value if value == decides => return decides,
            Truth::Unsure => return Truth::Unsure,
            Truth::Null => found = Truth::Null,
            _ => {}
        }
    }
    found
}

fn against(value: &[u8], sign: Sign, number: Number) -> Truth {
    if value.len() > DIGITS_MAX || !value.iter().all(u8::is_ascii_digit) {
        return Truth::Unsure;
    }
    let read = value.iter().fold(0_u32, |read, digit| read.wrapping_mul(10).wrapping_add(u32::from(digit & 15)));
    let order = match number {
        Number::Whole(number) => Some(i64::from(read).cmp(&number)),
        Number::Double(number) => f64::from(read).partial_cmp(&number),
    };
    let Some(order) = order else { return Truth::Unsure };
    truth(match sign {
        Sign::Greater => order.is_gt(),
        Sign::GreaterOrEqual => order.is_ge(),
        Sign::Less => order.is_lt(),
        Sign::LessOrEqual => order.is_le(),
        Sign::Equal => order.is_eq(),
    })
}

/// An expression, as far as it can be told here whether a message matches.
pub struct BulkFilter {
    literal: Option<memmem::Finder<'static>>,
    names: Names,
    node: Node,
    conditions: usize,
}

impl BulkFilter {
    /// Make an expression ready.
    pub fn of(names: Names, node: Node) -> Self {
        let literal = node.literal(&names).map(|literal| finder(&literal));
        BulkFilter { literal, names, conditions: node.conditions(), node }
    }

    /// Return the indexes of the blocks that match, and of those that somebody else must test.
    pub fn matching<'a>(&self, blocks: impl Iterator<Item = &'a [u8]>) -> (Vec<usize>, Vec<usize>) {
        let (mut sure, mut unsure, mut values) = (Vec::new(), Vec::new(), Values::default());
        for (index, block) in blocks.enumerate() {
            match self.test(block, &mut values, &mut 0) {
                Some(true) => sure.push(index),
                None => unsure.push(index),
                Some(false) => {}
            }
        }
        (sure, unsure)
    }

    /// Whether a message with these properties matches; `None`: somebody else must test it. Adds what that costs.
    fn test(&self, bytes: &[u8], values: &mut Values, work: &mut u64) -> Option<bool> {
        if let Some(literal) = &self.literal {
            *work = work.saturating_add(wide(bytes.len()) / READ_OF_WORK);
            if literal.find(bytes).is_none() {
                return Some(false);
            }
        }
        if self.conditions.saturating_mul(bytes.len()) > WORK_MAX || matches!(self.node, Node::Unsure) {
            return None;
        }
        values.find(&self.names, bytes, work);
        let mut block = Block { bytes, values, read: 0 };
        let found = self.node.test(&mut block);
        let conditions = wide(self.conditions).saturating_mul(WORK_OF_CONDITION);
        *work = work.saturating_add(conditions).saturating_add(wide(block.read) / READ_OF_WORK);
        match found {
            Truth::True => Some(true),
            Truth::Unsure => None,
            Truth::False | Truth::Null => Some(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_records_are_looked_at(
            data in proptest::collection::vec(prop_oneof![Just(0u8), Just(0xFF), any::<u8>()], 0..3000),
            entries in proptest::collection::vec((0i64..3000, 0i32..3000, any::<i64>()), 0..5),
            base in 0i64..3, steps in -1i64..200, weight in 0u64..9, at_most in 0usize..3,
        ) {
            let bytes: Vec<u8> = entries.iter()
                .flat_map(|(place, size, tag)| [&place.to_be_bytes()[..], &size.to_be_bytes(), &tag.to_be_bytes()].concat())
                .collect();
            let found = BulkFilter::of(Names::default(), Node::Unsure)
                .records(&data.as_slice(), base, &bytes, Room { steps, message: 7, weight, at_most: 1 });
            prop_assert!(found.looked <= entries.len());
            prop_assert!(found.spent >= 7 * i64::try_from(found.looked).unwrap_or(0));
            prop_assert_eq!(&found.unsure, &(0..found.looked).collect::<Vec<_>>());
            prop_assert!(found.blocks.iter().all(|text| text.len() <= data.len()));
            prop_assert!(tag_matches(&bytes, &[7], at_most).len() <= at_most.min(entries.len()));
        }

        #[test]
        fn any_block_is_tested(
            block in proptest::collection::vec(prop_oneof![Just(1u8), Just(2), Just(b'a'), any::<u8>()], 0..60), more in 0u8..9,
        ) {
            let mut names = Names::default();
            let name = names.number(b"a\x01".to_vec());
            (0..more).for_each(|other| _ = names.number(vec![b'b', other, 1]));
            let (mut values, mut work) = (Values::default(), 0);
            values.find(&names, &block, &mut work);
            let expected = block.split(|byte| *byte == 2).filter_map(|pair| pair.strip_prefix(b"a\x01")).rfind(|value| !value.is_empty());
            prop_assert_eq!(Block { bytes: &block, values: &values, read: 0 }.value(name), expected);

            let nodes = vec![
                Node::Number(name, Sign::Less, Number::Double(2.5)),
                Node::Text(name, b"a".to_vec()),
                Node::In(name, Texts::of(HashSet::from([b"ab".to_vec()])), true),
                Node::Search(name, Search::EndsWith(b"a".to_vec()), true),
                Node::Null(name),
            ];
            let found = BulkFilter::of(names, Node::Any(nodes)).matching([block.as_slice()].into_iter());
            prop_assert!(expected.is_some() || found == (vec![0], vec![]));
        }
    }
}
