//! Stored records: whether bytes are what their queue entries say.

use crate::keys::Bytes;

/// A stored record.
pub const MAGIC: i32 = -626_843_481;
/// A stored record with a topic length of two bytes.
pub const MAGIC_V2: i32 = -626_843_477;
/// Bytes of records that lie apart, up to which a copy costs less than to hand them on one by one.
pub const JOINED_MAX: usize = 64 * 1024;
/// Bytes of a piece that costs less to hand on than to copy.
pub const APART_MIN: usize = 4096;
/// A queue entry has so many.
pub const ENTRY_BYTES: usize = 20;

fn i32_at(data: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(*data.get(at..)?.first_chunk()?))
}

fn i64_at(data: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_be_bytes(*data.get(at..)?.first_chunk()?))
}

/// Where a record says that it lies: queue id, queue offset, physical offset.
pub type Place = (i32, i64, i64);

/// The bytes before the body of a record with IPv4 hosts. Taken once: a look somewhere else may cost a copy.
type Fixed = [u8; 88];

fn place_of(head: &Fixed) -> Option<Place> {
    Some((i32_at(head, 12)?, i64_at(head, 20)?, i64_at(head, 28)?))
}

/// Where the parts of a record lie.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// The hosts: where it was born, and where it is stored.
    pub hosts: (usize, usize),
    /// Where its body begins.
    pub body_at: usize,
    /// How long that is.
    pub body: usize,
    /// Where its topic begins.
    pub topic_at: usize,
    /// How long that is.
    pub topic: usize,
    /// Where it ends.
    pub end: usize,
}

fn u16_of(data: &impl Bytes, at: usize) -> Option<usize> {
    Some(usize::from(u16::from_be_bytes(data.array(at)?)))
}

fn i32_of(data: &impl Bytes, at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(data.array(at)?))
}

/// Return the parts of the record that begins at a place, if they take as many bytes as it says.
pub fn parts_at(data: &impl Bytes, at: usize) -> Option<Parts> {
    parts_behind(data, at, &data.array(at)?)
}

fn parts_behind(data: &impl Bytes, at: usize, head: &Fixed) -> Option<Parts> {
    let flag = head.get(39)?;
    let hosts = (if flag & 0x10 == 0 { 8_usize } else { 20 }, if flag & 0x20 == 0 { 8_usize } else { 20 });
    let body_at = at.checked_add(72)?.checked_add(hosts.0)?.checked_add(hosts.1)?;
    let body = usize::try_from(i32_of(data, body_at.checked_sub(4)?)?).ok()?;
    let behind = body_at.checked_add(body)?;
    let (topic_at, topic) = match i32_at(head, 4)? {
        MAGIC => {
            let [size] = data.array(behind)?;
            (behind.checked_add(1)?, usize::from(size))
        }
        MAGIC_V2 => (behind.checked_add(2)?, u16_of(data, behind)?),
        _ => return None,
    };
    let properties_at = topic_at.checked_add(topic)?;
    let end = properties_at.checked_add(2)?.checked_add(u16_of(data, properties_at)?)?;
    let size = usize::try_from(i32_at(head, 0)?).ok()?;
    (end == at.checked_add(size)? && end <= data.len()).then_some(Parts { hosts, body_at, body, topic_at, topic, end })
}

/// Return where the record ends that begins at a place, if it names its own and its parts take as many bytes as it says.
fn end_of(data: &impl Bytes, at: usize, place: Place) -> Option<usize> {
    let head = data.array(at)?;
    (place_of(&head)? == place).then_some(parts_behind(data, at, &head)?.end)
}

/// The fields before a record's body, without its hosts.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// Size, magic, body CRC, queue id, flag.
    pub first: [i32; 5],
    /// Queue offset and physical offset.
    pub offsets: [i64; 2],
    /// Its sysFlag.
    pub sys_flag: i32,
    /// When it was born and when it was stored, milliseconds.
    pub times: [i64; 2],
    /// How often it was consumed in vain.
    pub reconsume: i32,
    /// Where its half message lies.
    pub prepared: i64,
}

/// Return the numbers before the body of a record whose hosts are so long.
pub fn head_at(data: &[u8], at: usize, hosts: (usize, usize)) -> Option<Head> {
    let head = data.get(at..)?;
    let store_at = hosts.0.checked_add(48)?;
    let behind = store_at.checked_add(8)?.checked_add(hosts.1)?;
    Some(Head {
        first: [i32_at(head, 0)?, i32_at(head, 4)?, i32_at(head, 8)?, i32_at(head, 12)?, i32_at(head, 16)?],
        offsets: [i64_at(head, 20)?, i64_at(head, 28)?],
        sys_flag: i32_at(head, 36)?,
        times: [i64_at(head, 40)?, i64_at(head, store_at)?],
        reconsume: i32_at(head, behind)?,
        prepared: i64_at(head, behind.checked_add(4)?)?,
    })
}

/// Return how many of the records that lie one behind another are whole and name their own place, up to the first that does not.
pub fn whole_records(data: &impl Bytes, sizes: &[i64], first: Place) -> usize {
    let (queue_id, mut queue_offset, mut physical_offset) = first;
    let mut at = 0_usize;
    for (index, size) in sizes.iter().enumerate() {
        let Some(end) = end_of(data, at, (queue_id, queue_offset, physical_offset)) else { return index };
        if i64::try_from(end.saturating_sub(at)) != Ok(*size) {
            return index;
        }
        at = end;
        queue_offset = queue_offset.wrapping_add(1);
        physical_offset = physical_offset.wrapping_add(*size);
    }
    sizes.len()
}

/// Records that queue entries name.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The size of each, and the place that it has to name.
    pub records: Vec<(usize, Place)>,
    /// Their bytes together.
    pub size: usize,
    /// Where neighbours begin and end.
    pub runs: Vec<(usize, usize)>,
}

/// Return the records of some entries, up to the first that does not fit or lies elsewhere. `base` is the offset in the log of the
/// `area_bytes` that they lie in; `entries` begin at the offset `first` of the queue.
pub fn wanted(
    entries: &[u8],
    base: i64,
    area_bytes: usize,
    chosen: impl Iterator<Item = usize>,
    (queue_id, first): (i32, i64),
    size_max: i64,
) -> Wanted {
    let mut found = Wanted::default();
    for index in chosen {
        let entry = || -> Option<(usize, usize, usize, Place)> {
            let at = index.checked_mul(ENTRY_BYTES)?;
            let place = i64_at(entries, at)?;
            let size = usize::try_from(i32_at(entries, at.checked_add(8)?)?).ok()?;
            let all = found.size.checked_add(size).filter(|all| i64::try_from(*all).is_ok_and(|all| all <= size_max))?;
            let begin = usize::try_from(place.checked_sub(base)?).ok()?;
            let end = begin.checked_add(size).filter(|end| size > 0 && *end <= area_bytes)?;
            Some((begin, end, all, (queue_id, first.checked_add(i64::try_from(index).ok()?)?, place)))
        };
        let Some((begin, end, all, place)) = entry() else { break };
        match found.runs.last_mut() {
            Some(run) if run.1 == begin => run.1 = end,
            _ => found.runs.push((begin, end)),
        }
        found.records.push((end.saturating_sub(begin), place));
        found.size = all;
    }
    found
}

/// Return how many of the wanted records, which lie one behind another, are whole, and how many bytes those have. Ends with the data.
pub fn whole_of(data: &impl Bytes, wanted: &[(usize, Place)]) -> (usize, usize) {
    let mut at = 0_usize;
    for (index, (size, place)) in wanted.iter().enumerate() {
        match end_of(data, at, *place) {
            Some(end) if Some(end) == at.checked_add(*size) => at = end,
            _ => return (index, at),
        }
    }
    (wanted.len(), at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn of_any_bytes_some_records_are_whole(
            data in proptest::collection::vec(prop_oneof![Just(0u8), Just(0xFF), any::<u8>()], 0..300),
            v2 in any::<bool>(),
            sizes in proptest::collection::vec(prop_oneof![0i64..300, any::<i64>()], 0..4),
        ) {
            let mut data = data;
            if let Some(place) = data.get_mut(4..8) {
                place.copy_from_slice(&(if v2 { MAGIC_V2 } else { MAGIC }).to_be_bytes());
            }
            let place = data.as_slice().array(0).and_then(|head| place_of(&head)).unwrap_or_default();
            prop_assert!(whole_records(&data.as_slice(), &sizes, place) <= sizes.len());
            let mut entry = place.2.to_be_bytes().to_vec();
            entry.extend_from_slice(data.get(..4).unwrap_or_default());
            let found = wanted(&entry, place.2, data.len(), 0..2, (place.0, place.1), i64::MAX);
            prop_assert!(found.size <= data.len() && found.records.len() <= 1 && found.runs.len() <= 1);
            let (count, size) = whole_of(&data.as_slice(), &found.records);
            prop_assert!(count <= found.records.len() && size <= found.size);
        }
    }
}
