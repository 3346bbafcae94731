//! What filters look at: queue entries with a wanted tag, the properties of records, and which of these may match an expression.

use std::collections::HashSet;

use memchr::{memchr_iter, memmem};

use crate::keys::Bytes;
use crate::record::{ENTRY_BYTES, MAGIC_V2};

/// The size in entries that point at no record.
const FILLER_SIZE: i32 = i32::MAX;
/// The least that a record takes.
const RECORD_BYTES_MIN: usize = 91;
/// Bytes that all conditions of an expression together pass over in one message; more is left to the caller, who makes a table first.
const WORK_MAX: usize = 128 * 1024;
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

/// Return the indexes, rising, of the entries of records with one of these tag codes.
pub fn tag_matches(entries: &[u8], codes: &[i64]) -> Vec<usize> {
    let many: HashSet<i64> = if codes.len() > 8 { codes.iter().copied().collect() } else { HashSet::new() };
    let wanted = |code: i64| if many.is_empty() { codes.contains(&code) } else { many.contains(&code) };
    let count = entries.len() / ENTRY_BYTES;
    (0..count).filter(|index| entry_at(entries, *index).is_some_and(|(_, size, code)| wanted(code) && is_real(size))).collect()
}

/// Return the stored properties of the records of entries; `area` begins at the offset `base` of the log. Ends before an entry
/// whose record is not all in the area, but for the first, and behind `bytes_max`.
pub fn properties_of(area: &impl Bytes, base: i64, entries: &[u8], bytes_max: usize) -> Vec<Vec<u8>> {
    let (mut found, mut all) = (Vec::new(), 0_usize);
    for index in 0..entries.len() / ENTRY_BYTES {
        let range = || -> Option<(usize, usize)> {
            let (place, size, _) = entry_at(entries, index).filter(|(_, size, _)| 0 < *size && is_real(*size))?;
            let begin = usize::try_from(place.checked_sub(base)?).ok().filter(|begin| *begin < area.len())?;
            Some((begin, begin.checked_add(usize::try_from(size).ok()?)?))
        };
        let Some((begin, end)) = range().filter(|(_, end)| index == 0 || *end <= area.len()) else { break };
        if all >= bytes_max {
            break;
        }
        let end = end.min(area.len());
        let mut text = vec![0; end.saturating_sub(properties_at(area, begin, end).unwrap_or(end).min(end))];
        if area.copy(end.saturating_sub(text.len()), &mut text).is_none() {
            text.clear();
        }
        all = all.saturating_add(text.len());
        found.push(text);
    }
    found
}

/// Return where the properties begin of the record that lies between two places; `None`: it makes no sense.
fn properties_at(area: &impl Bytes, begin: usize, end: usize) -> Option<usize> {
    if end.checked_sub(begin)? < RECORD_BYTES_MIN {
        return None;
    }
    let head: [u8; 88] = area.array(begin)?;
    let flag = head.get(39)?;
    let hosts = [0x10, 0x20].iter().filter(|bit| flag & **bit != 0).count();
    let behind = begin.checked_add(88)?.checked_add(hosts.checked_mul(12)?)?;
    let body = i64::from(i32::from_be_bytes(area.array(behind.checked_sub(4)?)?));
    let topic_at = usize::try_from(i64::try_from(behind).ok()?.checked_add(body)?).ok()?;
    if behind > end || topic_at < behind || topic_at > end.checked_sub(3)? {
        return None;
    }
    let [high, low]: [u8; 2] = area.array(topic_at)?;
    if head.get(7) == MAGIC_V2.to_be_bytes().last() {
        return topic_at.checked_add(4)?.checked_add(usize::from(u16::from_be_bytes([high, low])));
    }
    topic_at.checked_add(3)?.checked_add(usize::from(high))
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

/// What a property is searched for at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Anywhere.
    Contains,
    /// Its beginning.
    StartsWith,
    /// Its end.
    EndsWith,
}

/// A number of an expression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A whole one.
    Whole(i64),
    /// Another.
    Double(f64),
}

/// A condition. Names end with 0x01, as they do in stored properties.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// AND.
    All(Vec<Node>),
    /// OR.
    Any(Vec<Node>),
    /// NOT.
    Not(Box<Node>),
    /// A property against a number.
    Number(Vec<u8>, Sign, Number),
    /// A property that is a text.
    Text(Vec<u8>, Vec<u8>),
    /// A property that is one of some texts, or (true) none of them.
    In(Vec<u8>, HashSet<Vec<u8>>, bool),
    /// A property that is not there.
    Null(Vec<u8>),
    /// A property as a condition.
    Bare(Vec<u8>),
    /// A property that holds a text, or (true) does not.
    Search(Vec<u8>, Word, Vec<u8>, bool),
    /// Something else.
    Unsure,
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
    /// How many conditions there are that look for a property.
    pub fn conditions(&self) -> usize {
        match self {
            Node::All(parts) | Node::Any(parts) => parts.iter().map(Node::conditions).fold(0, usize::saturating_add),
            Node::Not(of) => of.conditions(),
            _ => 1,
        }
    }

    fn test(&self, block: &[u8]) -> Truth {
        match self {
            Node::All(parts) => first_of(parts, block, Truth::False, Truth::True),
            Node::Any(parts) => first_of(parts, block, Truth::True, Truth::False),
            Node::Not(of) => match of.test(block) {
                Truth::True => Truth::False,
                Truth::False => Truth::True,
                other => other,
            },
            Node::Number(name, sign, number) => value_of(block, name).map_or(Truth::Null, |value| against(value, *sign, *number)),
            Node::Text(name, wanted) => match value_of(block, name) {
                None => Truth::Null,
                Some(value) if value == wanted => Truth::True,
                Some(value) if value.is_ascii() => Truth::False,
                Some(_) => Truth::Unsure, // what is no UTF-8 may be the same text
            },
            Node::In(name, texts, negated) => match value_of(block, name) {
                None => Truth::Null,
                Some(value) => truth(texts.contains(value) != *negated),
            },
            Node::Null(name) => truth(value_of(block, name).is_none()),
            Node::Bare(name) => value_of(block, name).map_or(Truth::Null, |_| Truth::False),
            Node::Search(name, word, text, negated) => {
                let finds = |value: &[u8]| match word {
                    Word::Contains => memmem::find(value, text).is_some(),
                    Word::StartsWith => value.starts_with(text),
                    Word::EndsWith => value.ends_with(text),
                };
                truth(value_of(block, name).is_some_and(|value| finds(value) != *negated))
            }
            Node::Unsure => Truth::Unsure,
        }
    }
}

/// AND and OR, from left to right: the first part that is `decides` says it.
fn first_of(parts: &[Node], block: &[u8], decides: Truth, otherwise: Truth) -> Truth {
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

/// Return the last value of a property that is not empty.
fn value_of<'a>(block: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut found = None;
    let mut take = |pair: &'a [u8]| {
        if let Some(value) = pair.strip_prefix(name).filter(|value| !value.is_empty()) {
            found = Some(value);
        }
    };
    let mut at = 0;
    for end in memchr_iter(2, block) {
        take(block.get(at..end).unwrap_or(&[]));
        at = end.saturating_add(1);
    }
    take(block.get(at..).unwrap_or(&[]));
    found
}

/// An expression, as far as it can be told here whether a message matches.
pub struct Sieve {
    /// Bytes that each match contains.
    pub needle: Option<memmem::Finder<'static>>,
    /// What is tested.
    pub node: Node,
    /// How many conditions that is.
    pub conditions: usize,
}

impl Sieve {
    /// Whether a message with these properties matches; `None`: the caller has to look.
    pub fn test(&self, block: &[u8]) -> Option<bool> {
        if self.needle.as_ref().is_some_and(|needle| needle.find(block).is_none()) {
            return Some(false);
        }
        if self.conditions.saturating_mul(block.len()) > WORK_MAX {
            return None;
        }
        match self.node.test(block) {
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
        fn any_area_has_some_properties(
            data in proptest::collection::vec(prop_oneof![Just(0u8), Just(0xFF), any::<u8>()], 0..300),
            entries in proptest::collection::vec((0i64..300, 0i32..300, any::<i64>()), 0..5),
            base in 0i64..3, most in 0usize..200,
        ) {
            let bytes: Vec<u8> = entries.iter()
                .flat_map(|(place, size, tag)| [&place.to_be_bytes()[..], &size.to_be_bytes(), &tag.to_be_bytes()].concat())
                .collect();
            let found = properties_of(&data.as_slice(), base, &bytes, most);
            prop_assert!(found.len() <= entries.len());
            prop_assert!(found.iter().all(|text| text.len() <= data.len()));
            prop_assert!(tag_matches(&bytes, &[7]).len() <= entries.len());
        }

        #[test]
        fn any_block_is_tested(block in proptest::collection::vec(prop_oneof![Just(1u8), Just(2), Just(b'a'), any::<u8>()], 0..60)) {
            let name = b"a\x01".to_vec();
            let known = value_of(&block, &name).is_some();
            for node in [
                Node::Number(name.clone(), Sign::Less, Number::Double(2.5)),
                Node::Text(name.clone(), b"a".to_vec()),
                Node::Search(name.clone(), Word::EndsWith, b"a".to_vec(), true),
            ] {
                let sieve = Sieve { needle: None, node: Node::Any(vec![node, Node::Null(name.clone())]), conditions: 2 };
                prop_assert!(known || sieve.test(&block) == Some(true));
            }
        }
    }
}
