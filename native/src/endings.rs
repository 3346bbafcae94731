//! `Endings`: what producers decided in one turn; `Recent`: half messages that came lately, and what endings make of them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use crate::messages::Messages;
use crate::states::ENTRY_BYTES;

/// Who waits for an answer: connection, opaque, serialisation.
pub type Asked = (i64, i32, i64);

/// Who waits, and producer groups with how many commits and rollbacks there are of each.
pub type Told = (Vec<Asked>, Vec<(String, usize, usize)>);

/// What a producer decided about a half message.
#[derive(Clone, Debug)]
pub struct Ending {
    /// Who waits.
    pub asked: Option<Asked>,
    /// The connection.
    pub peer: i64,
    /// Queue offset of the half message.
    pub index: i64,
    /// Where it lies.
    pub place: i64,
    /// Whether it is committed, or rolled back.
    pub committed: bool,
    group: Range<usize>,
    key: Range<usize>,
}

/// The columns; an ending is meant by its number.
#[derive(Default)]
pub struct Endings {
    rows: Vec<Ending>,
    texts: String,
    /// Those that brokers had asked for.
    pub checks: Vec<usize>,
}

impl Endings {
    /// Add one; `check`: a broker had asked for it.
    #[allow(clippy::too_many_arguments)]
    pub fn add(
        &mut self,
        asked: Option<Asked>,
        peer: i64,
        group: &str,
        index: i64,
        place: i64,
        committed: bool,
        key: &str,
        check: bool,
    ) {
        if check {
            self.checks.push(self.rows.len());
        }
        let begin = self.texts.len();
        self.texts.push_str(group);
        let middle = self.texts.len();
        self.texts.push_str(key);
        let (group, key) = (begin..middle, middle..self.texts.len());
        self.rows.push(Ending { asked, peer, index, place, committed, group, key });
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// One, with its producer group and the message's id.
    pub fn at(&self, number: usize) -> Option<(&Ending, &str, &str)> {
        let one = self.rows.get(number)?;
        Some((one, self.texts.get(one.group.clone())?, self.texts.get(one.key.clone())?))
    }

    /// Who of these waits for an answer, and how many commits and rollbacks there are of which producer group. `None`: one is not
    /// there.
    pub fn told(&self, committed: &[usize], rolled_back: &[usize]) -> Option<Told> {
        let mut asked = Vec::new();
        let mut counts: Vec<(String, usize, usize)> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (numbers, commits) in [(committed, 1_usize), (rolled_back, 0)] {
            for number in numbers {
                let (one, group, _) = self.at(*number)?;
                asked.extend(one.asked);
                let place = *places.entry(group).or_insert_with(|| {
                    counts.push((group.to_owned(), 0, 0));
                    counts.len().saturating_sub(1)
                });
                let (_, committed, rolled_back) = counts.get_mut(place)?;
                *committed = committed.saturating_add(commits);
                *rolled_back = rolled_back.saturating_add(1_usize.saturating_sub(commits));
            }
        }
        Some((asked, counts))
    }
}

struct Half {
    place: i64,
    size: i64,
    queue: Arc<(String, i64)>,
    group: Arc<str>,
    message: Messages,
}

/// What endings make of half messages.
#[derive(Default)]
pub struct Found {
    /// What commits store, by queue.
    pub queues: Vec<(Arc<(String, i64)>, Messages)>,
    /// The endings of each queue.
    pub numbers: Vec<Vec<usize>>,
    /// Endings that roll back.
    pub rolled_back: Vec<usize>,
    /// Indexes of the half messages of all these, in this order.
    pub indexes: Vec<i64>,
    /// Endings about others.
    pub others: Vec<usize>,
}

/// Pending half messages by index, bounded by number and bytes.
pub struct Recent {
    count_max: usize,
    bytes_max: i64,
    bytes: i64,
    halves: BTreeMap<i64, Half>,
}

impl Recent {
    /// Keep so many at most, and records of so many bytes.
    pub fn new(count_max: usize, bytes_max: i64) -> Self {
        Recent { count_max, bytes_max, bytes: 0, halves: BTreeMap::new() }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.halves.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.halves.is_empty()
    }

    /// Keep half messages for one queue, with their queue entries; the first go when there are too many.
    pub fn add(&mut self, index: i64, entries: &[u8], topic: &str, queue_id: i64, group: &str, messages: &Messages) {
        let queue = Arc::new((topic.to_owned(), queue_id));
        let group: Arc<str> = Arc::from(group);
        let rows = entries.chunks_exact(ENTRY_BYTES).filter_map(|row| row.first_chunk::<ENTRY_BYTES>());
        for ((number, row), message) in (index..).zip(rows).zip(messages.kept()) {
            let [p0, p1, p2, p3, p4, p5, p6, p7, s0, s1, s2, s3, ..] = *row;
            let place = i64::from_be_bytes([p0, p1, p2, p3, p4, p5, p6, p7]);
            let size = i64::from(i32::from_be_bytes([s0, s1, s2, s3]));
            let half = Half { place, size, queue: Arc::clone(&queue), group: Arc::clone(&group), message };
            self.bytes = self.bytes.saturating_add(size);
            if let Some(before) = self.halves.insert(number, half) {
                self.bytes = self.bytes.saturating_sub(before.size);
            }
        }
        while self.bytes > self.bytes_max || self.halves.len() > self.count_max {
            let Some((_, half)) = self.halves.pop_first() else { break };
            self.bytes = self.bytes.saturating_sub(half.size);
        }
    }

    /// One by itself, when it is here.
    pub fn get(&self, index: i64) -> Option<&Messages> {
        self.halves.get(&index).map(|half| &half.message)
    }

    /// Let those go that are here.
    pub fn drop(&mut self, indexes: &[i64]) {
        for index in indexes {
            if let Some(half) = self.halves.remove(index) {
                self.bytes = self.bytes.saturating_sub(half.size);
            }
        }
    }

    /// What endings make of the half messages here; the second about one counts as about others. `None`: one is not there.
    pub fn decided(&self, endings: &Endings, chosen: impl Iterator<Item = usize>) -> Option<Found> {
        let mut found = Found::default();
        let mut places: HashMap<&(String, i64), usize> = HashMap::new();
        let mut of_queues: Vec<Vec<i64>> = Vec::new();
        let mut rolled_back: Vec<i64> = Vec::new();
        let mut seen: HashSet<i64> = HashSet::new();
        for number in chosen {
            let (ending, group, _) = endings.at(number)?;
            let half = self.halves.get(&ending.index).filter(|half| half.place == ending.place && *half.group == *group);
            let Some(half) = half.filter(|_| seen.insert(ending.index)) else {
                found.others.push(number);
                continue;
            };
            if !ending.committed {
                found.rolled_back.push(number);
                rolled_back.push(ending.index);
                continue;
            }
            let place = *places.entry(&half.queue).or_insert_with(|| {
                found.queues.push((Arc::clone(&half.queue), Messages::default()));
                found.numbers.push(Vec::new());
                of_queues.push(Vec::new());
                found.queues.len().saturating_sub(1)
            });
            found.queues.get_mut(place)?.1.add_committed(&half.message, half.place);
            found.numbers.get_mut(place)?.push(number);
            of_queues.get_mut(place)?.push(ending.index);
        }
        of_queues.push(rolled_back);
        found.indexes = of_queues.concat();
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_said_to_be_missing() {
        let endings = Endings::default();
        assert!(endings.at(0).is_none() && endings.told(&[0], &[]).is_none() && endings.is_empty());
        assert!(Recent::new(1, 1).decided(&endings, std::iter::once(7)).is_none());
    }
}
