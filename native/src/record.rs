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

/// Return where the record ends that begins at a place, if its parts take as many bytes as it says.
fn end_of(data: &[u8], at: usize) -> Option<usize> {
    let magic = i32_at(data, at.checked_add(4)?)?;
    let hosts = match data.get(at.checked_add(39)?)? & 0x30 {
        0 => 0,
        0x30 => 24,
        _ => 12,
    };
    let body_at = at.checked_add(88)?.checked_add(hosts)?;
    let body = usize::try_from(i32_at(data, body_at.checked_sub(4)?)?).ok()?;
    let topic_at = body_at.checked_add(body)?;
    let properties_at = match magic {
        MAGIC => topic_at.checked_add(1)?.checked_add(usize::from(*data.get(topic_at)?))?,
        MAGIC_V2 => topic_at.checked_add(2)?.checked_add(u16_at(data, topic_at)?)?,
        _ => return None,
    };
    let end = properties_at.checked_add(2)?.checked_add(u16_at(data, properties_at)?)?;
    let size = usize::try_from(i32_at(data, at)?).ok()?;
    (end == at.checked_add(size)? && end <= data.len()).then_some(end)
}

/// Return how many of the records that lie one behind another are whole and name their own place, up to the first that does not.
pub fn whole_records(data: &[u8], sizes: &[i64], first: Place) -> usize {
    let (queue_id, mut queue_offset, mut physical_offset) = first;
    let mut at = 0_usize;
    for (index, size) in sizes.iter().enumerate() {
        let Some(end) = end_of(data, at) else { return index };
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
