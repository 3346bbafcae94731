//! Entries of the transaction index, made for a turn at once: states of half messages, and units that say what happened to them.

use std::collections::HashMap;

/// Bytes of a queue entry: `| physical offset i64 | size i32 | tag code i64 |`.
pub const ENTRY_BYTES: usize = 20;
/// Bytes of a state: `| physical offset i64 | size i32 | store time u32 | group hash i32 | state i32 |`.
pub const STATE_BYTES: usize = 24;
/// Indexes closer to each other than this are of one run: to write what lies between costs less than another write.
const NEAR: i64 = 64;
const PREPARED: [u8; 4] = 4_i32.to_be_bytes();
const COMMITTED: [u8; 4] = 8_i32.to_be_bytes();
const ROLLED_BACK: [u8; 4] = 12_i32.to_be_bytes();

/// First index, the one behind the last, and how many of those between are meant.
pub type Run = (i64, i64, usize);

/// Place and size of a queue entry, as they stand there.
fn entry(bytes: &[u8]) -> Option<([u8; 8], [u8; 4])> {
    let (place, rest) = bytes.split_first_chunk::<8>()?;
    Some((*place, *rest.first_chunk::<4>()?))
}

/// The states and units of half messages of one producer group, from their queue entries. `None`: a number has no place there.
pub fn prepared(entries: &[u8], store_s: i64, group_hash: i64) -> Option<(Vec<u8>, Vec<u8>)> {
    let rows = entries.chunks_exact(ENTRY_BYTES);
    if !rows.remainder().is_empty() {
        return None;
    }
    let store_s = u32::try_from(store_s).ok()?.to_be_bytes();
    let group_hash = i32::try_from(group_hash).ok()?.to_be_bytes();
    let mut states = Vec::with_capacity(rows.len().saturating_mul(STATE_BYTES));
    let mut units = Vec::with_capacity(entries.len());
    for row in rows {
        let (place, size) = entry(row)?;
        states.extend_from_slice(&place);
        for field in [size, store_s, group_hash, PREPARED] {
            states.extend_from_slice(&field);
        }
        units.extend_from_slice(&place);
        units.extend_from_slice(&size);
        units.extend_from_slice(&(-1_i64).to_be_bytes());
    }
    Some((states, units))
}

/// The runs of what lies near each other, rising; none goes beyond a file, or a block of it. `None`: they have no length.
pub fn runs_of(mut indexes: Vec<i64>, per_file: i64, block: i64) -> Option<Vec<Run>> {
    indexes.sort_unstable();
    let block_of = |index: i64| {
        let place = index.checked_rem_euclid(per_file)?;
        Some((index.checked_div_euclid(per_file)?, place.checked_div_euclid(block)?))
    };
    let mut runs: Vec<Run> = Vec::new();
    for index in indexes {
        let behind = index.checked_add(1)?;
        match runs.last_mut() {
            Some((first, end, count)) if index.saturating_sub(*end) < NEAR && block_of(index)? == block_of(*first)? => {
                (*end, *count) = (behind, count.saturating_add(1));
            }
            _ => {
                block_of(index)?;
                runs.push((index, behind, 1));
            }
        }
    }
    Some(runs)
}

/// The changes of decisions.
#[derive(Default)]
pub struct Decided {
    /// The states of the runs.
    pub states: Vec<u8>,
    /// The units of the decisions, in order.
    pub units: Vec<u8>,
    /// Group hashes, and how many decisions there are of each.
    pub groups: Vec<(i32, usize)>,
}

/// Enter decisions into the states of runs. `Err`: this index is not pending, or is decided twice.
pub fn decided(states: Vec<u8>, runs: &[Run], indexes: &[i64], entries: &[u8], committed: usize) -> Result<Decided, i64> {
    let mut found = Decided { states, ..Decided::default() };
    let mut begins: Vec<(i64, i64)> = Vec::with_capacity(runs.len());
    let mut at = 0_i64;
    for (first, end, _) in runs {
        begins.push((*first, at));
        at = at.saturating_add(end.saturating_sub(*first));
    }
    let mut counts: HashMap<i32, usize> = HashMap::new();
    for (number, (index, row)) in indexes.iter().zip(entries.chunks_exact(ENTRY_BYTES)).enumerate() {
        let one = decide(&mut found.states, &begins, *index, row, number < committed, &mut found.units).ok_or(*index)?;
        let count = counts.entry(one).or_insert_with(|| {
            found.groups.push((one, 0));
            0
        });
        *count = count.saturating_add(1);
    }
    for (group, count) in &mut found.groups {
        *count = counts.get(group).copied().unwrap_or(0);
    }
    Ok(found)
}

/// Enter one decision, and return the group hash.
fn decide(states: &mut [u8], begins: &[(i64, i64)], index: i64, row: &[u8], committed: bool, units: &mut Vec<u8>) -> Option<i32> {
    let (first, begin) = begins.get(begins.partition_point(|(first, _)| *first <= index).checked_sub(1)?)?;
    let record = usize::try_from(begin.checked_add(index.checked_sub(*first)?)?).ok()?;
    let state = states.get_mut(record.checked_mul(STATE_BYTES)?..)?.first_chunk_mut::<STATE_BYTES>()?;
    let [o0, o1, o2, o3, o4, o5, o6, o7, _, _, _, _, _, _, _, _, g0, g1, g2, g3, now @ ..] = state;
    if *now != PREPARED {
        return None;
    }
    let half_offset = i64::from_be_bytes([*o0, *o1, *o2, *o3, *o4, *o5, *o6, *o7]);
    let tag = if committed { half_offset } else { (-2_i64).checked_sub(half_offset)? };
    *now = if committed { COMMITTED } else { ROLLED_BACK };
    let (place, size) = entry(row)?;
    units.extend_from_slice(&place);
    units.extend_from_slice(&size);
    units.extend_from_slice(&tag.to_be_bytes());
    Some(i32::from_be_bytes([*g0, *g1, *g2, *g3]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_numbers_are_decided_or_refused(
            indexes in proptest::collection::vec(prop_oneof![0i64..300, any::<i64>()], 0..9), per_file in -1i64..200,
            block in -1i64..90, states in proptest::collection::vec(prop_oneof![Just(0u8), Just(4), any::<u8>()], 0..200),
            entries in proptest::collection::vec(any::<u8>(), 0..200), committed in 0usize..9,
        ) {
            let _ = prepared(&entries, 5, 6);
            let Some(runs) = runs_of(indexes.clone(), per_file, block) else { return Ok(()) };
            prop_assert_eq!(runs.iter().map(|(_, _, count)| count).sum::<usize>(), indexes.len());
            let _ = decided(states, &runs, &indexes, &entries, committed);
        }
    }
}
