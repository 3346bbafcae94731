//! `Completions`: what producers decided in one turn. `HalfMessageCache`: the newest half messages, and which of them are decided.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use crate::messages::Messages;
use crate::states::ENTRY_BYTES;

/// A caller that waits for a reply: connection, opaque, serialisation.
pub type Caller = (i64, i32, i64);

/// Callers that wait for a reply; the producer groups, each with its number of commits and of rollbacks.
pub type Tally = (Vec<Caller>, Vec<(String, usize, usize)>);

/// A producer's decision about a half message.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The caller that waits.
    pub caller: Option<Caller>,
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

/// The columns. A completion is addressed by its number.
#[derive(Default)]
pub struct Completions {
    rows: Vec<Completion>,
    texts: String,
    /// Those that answer checks of brokers.
    pub checks: Vec<usize>,
}

impl Completions {
    /// Add one; `check`: it answers a check of a broker's.
    #[allow(clippy::too_many_arguments)]
    pub fn add(
        &mut self,
        caller: Option<Caller>,
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
        self.rows.push(Completion { caller, peer, index, place, committed, group, key });
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
    pub fn at(&self, number: usize) -> Option<(&Completion, &str, &str)> {
        let completion = self.rows.get(number)?;
        Some((completion, self.texts.get(completion.group.clone())?, self.texts.get(completion.key.clone())?))
    }

    /// Return the callers that wait for a reply, and the commits and rollbacks by producer group. `None`: one is not there.
    pub fn tally(&self, committed: &[usize], rolled_back: &[usize]) -> Option<Tally> {
        let mut callers = Vec::new();
        let mut counts: Vec<(String, usize, usize)> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (numbers, commits) in [(committed, 1_usize), (rolled_back, 0)] {
            for number in numbers {
                let (completion, group, _) = self.at(*number)?;
                callers.extend(completion.caller);
                let place = *places.entry(group).or_insert_with(|| {
                    counts.push((group.to_owned(), 0, 0));
                    counts.len().saturating_sub(1)
                });
                let (_, committed, rolled_back) = counts.get_mut(place)?;
                *committed = committed.saturating_add(commits);
                *rolled_back = rolled_back.saturating_add(1_usize.saturating_sub(commits));
            }
        }
        Some((callers, counts))
    }
}

struct Half {
    place: i64,
    size: i64,
    queue: Arc<(String, i64)>,
    group: Arc<str>,
    message: Messages,
}

/// The decisions of completions about half messages.
#[derive(Default)]
pub struct Decided {
    /// The messages of commits, by queue.
    pub queues: Vec<(Arc<(String, i64)>, Messages)>,
    /// The completions of each queue.
    pub numbers: Vec<Vec<usize>>,
    /// Completions that roll back.
    pub rolled_back: Vec<usize>,
    /// Indexes of the half messages of all these, in this order.
    pub indexes: Vec<i64>,
    /// Completions of half messages that are not in the cache.
    pub others: Vec<usize>,
}

/// Pending half messages by index, bounded by number and bytes.
pub struct HalfMessageCache {
    count_max: usize,
    bytes_max: i64,
    bytes: i64,
    halves: BTreeMap<i64, Half>,
}

impl HalfMessageCache {
    /// Keep so many at most, and records of so many bytes.
    pub fn new(count_max: usize, bytes_max: i64) -> Self {
        HalfMessageCache { count_max, bytes_max, bytes: 0, halves: BTreeMap::new() }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.halves.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.halves.is_empty()
    }

    /// Add half messages of one queue, with their queue entries; evict the oldest over a bound.
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

    /// One by itself, if it is in the cache.
    pub fn get(&self, index: i64) -> Option<&Messages> {
        self.halves.get(&index).map(|half| &half.message)
    }

    /// Remove those that are in the cache.
    pub fn drop(&mut self, indexes: &[i64]) {
        for index in indexes {
            if let Some(half) = self.halves.remove(index) {
                self.bytes = self.bytes.saturating_sub(half.size);
            }
        }
    }

    /// Return the decisions about half messages in the cache; only the first of each counts. `None`: a number is out of range.
    pub fn decide(&self, completions: &Completions, chosen: impl Iterator<Item = usize>) -> Option<Decided> {
        let mut decided = Decided::default();
        let mut places: HashMap<&(String, i64), usize> = HashMap::new();
        let mut of_queues: Vec<Vec<i64>> = Vec::new();
        let mut rolled_back: Vec<i64> = Vec::new();
        let mut seen: HashSet<i64> = HashSet::new();
        for number in chosen {
            let (completion, group, _) = completions.at(number)?;
            let half = self.halves.get(&completion.index).filter(|half| half.place == completion.place && *half.group == *group);
            let Some(half) = half.filter(|_| seen.insert(completion.index)) else {
                decided.others.push(number);
                continue;
            };
            if !completion.committed {
                decided.rolled_back.push(number);
                rolled_back.push(completion.index);
                continue;
            }
            let place = *places.entry(&half.queue).or_insert_with(|| {
                decided.queues.push((Arc::clone(&half.queue), Messages::default()));
                decided.numbers.push(Vec::new());
                of_queues.push(Vec::new());
                decided.queues.len().saturating_sub(1)
            });
            decided.queues.get_mut(place)?.1.add_committed(&half.message, half.place);
            decided.numbers.get_mut(place)?.push(number);
            of_queues.get_mut(place)?.push(completion.index);
        }
        of_queues.push(rolled_back);
        decided.indexes = of_queues.concat();
        Some(decided)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_said_to_be_missing() {
        let completions = Completions::default();
        assert!(completions.at(0).is_none() && completions.tally(&[0], &[]).is_none() && completions.is_empty());
        assert!(HalfMessageCache::new(1, 1).decide(&completions, std::iter::once(7)).is_none());
    }
}
