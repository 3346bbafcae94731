//! Stored records: whether bytes are what their queue entries say.

/// A stored record.
pub const MAGIC: i32 = -626_843_481;
/// A stored record with a topic length of two bytes.
pub const MAGIC_V2: i32 = -626_843_477;

fn u16_at(data: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_be_bytes(*data.get(at..)?.first_chunk()?)))
}

fn i32_at(data: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(*data.get(at..)?.first_chunk()?))
}

fn i64_at(data: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_be_bytes(*data.get(at..)?.first_chunk()?))
}

/// Where a record says that it lies: queue id, queue offset, physical offset.
type Place = (i32, i64, i64);

fn place_at(data: &[u8], at: usize) -> Option<Place> {
    let place = data.get(at..)?;
    Some((i32_at(place, 12)?, i64_at(place, 20)?, i64_at(place, 28)?))
}

/// Where the parts of a record lie.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// Of its hosts: where it was born, and where it is stored.
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

/// Return the parts of the record that begins at a place, if they take as many bytes as it says.
pub fn parts_at(data: &[u8], at: usize) -> Option<Parts> {
    let magic = i32_at(data, at.checked_add(4)?)?;
    let flag = data.get(at.checked_add(39)?)?;
    let hosts = (if flag & 0x10 == 0 { 8_usize } else { 20 }, if flag & 0x20 == 0 { 8_usize } else { 20 });
    let body_at = at.checked_add(72)?.checked_add(hosts.0)?.checked_add(hosts.1)?;
    let body = usize::try_from(i32_at(data, body_at.checked_sub(4)?)?).ok()?;
    let behind = body_at.checked_add(body)?;
    let (topic_at, topic) = match magic {
        MAGIC => (behind.checked_add(1)?, usize::from(*data.get(behind)?)),
        MAGIC_V2 => (behind.checked_add(2)?, u16_at(data, behind)?),
        _ => return None,
    };
    let properties_at = topic_at.checked_add(topic)?;
    let end = properties_at.checked_add(2)?.checked_add(u16_at(data, properties_at)?)?;
    let size = usize::try_from(i32_at(data, at)?).ok()?;
    (end == at.checked_add(size)? && end <= data.len()).then_some(Parts { hosts, body_at, body, topic_at, topic, end })
}

/// What stands before a record's body, without its hosts.
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
pub fn whole_records(data: &[u8], sizes: &[i64], first: Place) -> usize {
    let (queue_id, mut queue_offset, mut physical_offset) = first;
    let mut at = 0_usize;
    for (index, size) in sizes.iter().enumerate() {
        let Some(Parts { end, .. }) = parts_at(data, at) else { return index };
        let place = Some((queue_id, queue_offset, physical_offset));
        if i64::try_from(end.saturating_sub(at)) != Ok(*size) || place_at(data, at) != place {
            return index;
        }
        at = end;
        queue_offset = queue_offset.wrapping_add(1);
        physical_offset = physical_offset.wrapping_add(*size);
    }
    sizes.len()
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
            prop_assert!(whole_records(&data, &sizes, place_at(&data, 0).unwrap_or_default()) <= sizes.len());
        }
    }
}
