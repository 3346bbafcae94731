//! Batch bodies: `| size i32 | 0 | 0 | flag i32 | body length i32 | body | properties length i16 | properties |` each message.

use std::ops::Range;

/// Messages of one batch: its answer names each by 32 letters and a comma in a header, which ends at a megabyte.
pub const BATCH_MAX: usize = 30_000;

const ITEM_BYTES_MIN: usize = 22;

/// Where one message of a batch lies in its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The bytes of its body.
    pub body: Range<usize>,
    /// The bytes of its properties.
    pub properties: Range<usize>,
    /// Its flag.
    pub flag: i32,
}

/// Write one message of a batch behind `out`. `None`: a length does not fit.
pub fn encode_item(body: &[u8], properties: &[u8], flag: i32, out: &mut Vec<u8>) -> Option<()> {
    let total = ITEM_BYTES_MIN.checked_add(body.len())?.checked_add(properties.len())?;
    let (total, size) = (i32::try_from(total).ok()?, i32::try_from(body.len()).ok()?);
    out.extend_from_slice(&total.to_be_bytes());
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&flag.to_be_bytes());
    out.extend_from_slice(&size.to_be_bytes());
    out.extend_from_slice(body);
    out.extend_from_slice(&i16::try_from(properties.len()).ok()?.to_be_bytes());
    out.extend_from_slice(properties);
    Some(())
}

/// Split a batch body into its messages. The error says which length does not fit.
pub fn batch_items(body: &[u8]) -> Result<Vec<Item>, String> {
    let mut items = Vec::new();
    let mut at = 0;
    while at < body.len() {
        let item = item_at(body, at)?;
        at = item.properties.end;
        items.push(item);
    }
    Ok(items)
}

fn item_at(body: &[u8], at: usize) -> Result<Item, String> {
    let head = body.get(at..).and_then(|rest| rest.first_chunk::<ITEM_BYTES_MIN>());
    let Some(&[a, b, c, d, _, _, _, _, _, _, _, _, e, f, g, h, i, j, k, l, ..]) = head else {
        return Err(format!("batch ends inside a message at byte {at}"));
    };
    let (total, flag, size) =
        (i32::from_be_bytes([a, b, c, d]), i32::from_be_bytes([e, f, g, h]), i32::from_be_bytes([i, j, k, l]));
    let places = || {
        let text = at.checked_add(ITEM_BYTES_MIN)?.checked_add(usize::try_from(size).ok()?)?;
        let end = at.checked_add(usize::try_from(total).ok()?)?;
        (text <= end && end <= body.len()).then_some((text, end))
    };
    let Some((text, end)) = places() else {
        return Err(format!("message at byte {at} of the batch says {total} bytes with {size} of body"));
    };
    let length = text.checked_sub(2).and_then(|begin| body.get(begin..)).and_then(|rest| rest.first_chunk::<2>());
    let length = length.map_or(0, |bytes| usize::from(u16::from_be_bytes(*bytes)));
    if text.saturating_add(length) != end || length > 0x7FFF {
        return Err(format!("message at byte {at} of the batch says {length} bytes of properties"));
    }
    let begin = at.saturating_add(20);
    Ok(Item { body: begin..text.saturating_sub(2), properties: text..end, flag })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_split_or_refused(body in proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..200)) {
            if let Ok(items) = batch_items(&body) {
                let whole: usize = items.iter().map(|item| 22 + item.body.len() + item.properties.len()).sum();
                prop_assert_eq!(whole, body.len());
            }
        }
    }
}
