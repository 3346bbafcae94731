//! Headers of sends and of ends of transactions: bytes in, plain values out. `None` for anything unusual: the general decoder must look at it.

use std::borrow::Cow;
use std::str::FromStr;

use crate::json::{Scanner, Text};

/// Where all fields of a header are kept, if they are wanted: they must be texts then. Empty ones need not be there.
pub type Texts<'t, 'a> = Option<&'t mut Vec<Text<'a>>>;

/// The fields that a broker uses of the header of SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendHeader<'a> {
    /// Number of the request.
    pub opaque: i32,
    /// Bits of the request: 1 an answer, 2 wants none.
    pub flag: i64,
    /// The topic, which is UTF-8.
    pub topic: Cow<'a, [u8]>,
    /// The queue.
    pub queue_id: i32,
    /// Bits of the message.
    pub sys_flag: i32,
    /// When the message was made.
    pub born_ms: i64,
    /// The user's flag.
    pub user_flag: i32,
    /// Properties as they were sent.
    pub properties: Cow<'a, [u8]>,
    /// How often it was consumed.
    pub reconsume: i32,
    /// Whether the body is a batch.
    pub batch: bool,
}

#[derive(Default)]
struct Fields<'a> {
    topic: Option<Cow<'a, [u8]>>,
    queue_id: Option<i32>,
    sys_flag: Option<i32>,
    born_ms: Option<i64>,
    user_flag: Option<i32>,
    properties: Cow<'a, [u8]>,
    reconsume: i32,
    batch: bool,
}

impl<'a> Fields<'a> {
    fn read(inner: &mut Scanner<'a>, texts: Texts<'_, 'a>) -> Option<Self> {
        let mut found = Fields::default();
        inner.fields(texts, |inner, name| {
            match name {
                // nobody looks at these, but the general decoder refuses what they cannot be
                b"a" | b"c" | b"n" => drop(inner.string()?),
                b"d" | b"l" => drop(inner.integer_32()?),
                b"k" => drop(inner.boolean()?),
                b"b" => found.topic = Some(inner.string()?),
                b"e" => found.queue_id = Some(inner.integer_32()?),
                b"f" => found.sys_flag = Some(inner.integer_32()?),
                b"g" => found.born_ms = Some(inner.integer()?),
                b"h" => found.user_flag = Some(inner.integer_32()?),
                b"i" => found.properties = inner.string()?,
                b"j" => found.reconsume = inner.integer_32()?,
                b"m" => found.batch = inner.boolean()?,
                _ => inner.skip()?,
            }
            Some(())
        })?;
        let whole = found.topic.is_some() && found.queue_id.is_some() && found.sys_flag.is_some();
        (whole && found.born_ms.is_some() && found.user_flag.is_some()).then_some(found)
    }
}

/// Read what every header in JSON says, code, flag and opaque, if all of it is as everybody writes it: fields are texts, and numbers
/// are numbers of 32 bits.
pub fn head_json(header: &[u8], fields_max: usize) -> Option<(i32, i32, i32)> {
    std::str::from_utf8(header).ok()?;
    let (mut code, mut flag, mut opaque, mut version, mut language) = (None, None, None, None, None);
    let mut scanner = Scanner::new(header);
    scanner.object(|inner, name| {
        match name {
            b"code" => code = Some(inner.plain_32()?),
            b"flag" => flag = Some(inner.plain_32()?),
            b"opaque" => opaque = Some(inner.plain_32()?),
            b"version" => version = Some(inner.plain_32()?),
            b"language" => language = Some(inner.string()?),
            b"remark" => drop(inner.string()?),
            b"extFields" => {
                let mut left = fields_max;
                inner.object(|inner, _| {
                    left = left.checked_sub(1)?;
                    inner.string().map(drop)
                })?;
            }
            _ => inner.skip()?,
        }
        Some(())
    })?;
    (version.is_some() && language.is_some() && scanner.at_end()).then_some((code?, flag?, opaque?))
}

/// Read a header that is JSON: its opaque, its flag, and what is made of its fields.
fn enveloped<'a, T>(header: &'a [u8], mut read: impl FnMut(&mut Scanner<'a>) -> Option<T>) -> Option<(i32, i64, T)> {
    std::str::from_utf8(header).ok()?;
    let (mut opaque, mut flag, mut fields) = (None, 0, None);
    let mut scanner = Scanner::new(header);
    scanner.object(|inner, name| {
        match name {
            b"opaque" => opaque = Some(inner.integer_32()?),
            b"flag" => flag = inner.integer()?,
            b"extFields" => fields = Some(read(inner)?),
            _ => inner.skip()?,
        }
        Some(())
    })?;
    scanner.at_end().then_some((opaque?, flag, fields?))
}

/// Read the header of a send that is JSON.
pub fn send_header_json<'a>(header: &'a [u8], mut texts: Texts<'_, 'a>) -> Option<SendHeader<'a>> {
    let (opaque, flag, fields) = enveloped(header, |inner| Fields::read(inner, texts.as_deref_mut()))?;
    Some(SendHeader {
        opaque,
        flag,
        topic: fields.topic?,
        queue_id: fields.queue_id?,
        sys_flag: fields.sys_flag?,
        born_ms: fields.born_ms?,
        user_flag: fields.user_flag?,
        properties: fields.properties,
        reconsume: fields.reconsume,
        batch: fields.batch,
    })
}

/// Read a header that is ROCKETMQ: 21 bytes, of which the code was looked at, and the fields.
///
/// Fields g (13 digits, as every time between 2001 and 2286 has) and i come once, in this order.
pub fn send_header_rocketmq<'a>(header: &'a [u8], mut texts: Texts<'_, 'a>) -> Option<SendHeader<'a>> {
    let (head, mut rest) = header.split_first_chunk::<21>()?;
    let [_, _, _, _, _, opaque @ .., _, _, _, _, _, _, _, _, _, _, _, _] = *head;
    let [.., f0, f1, f2, f3, r0, r1, r2, r3, e0, e1, e2, e3] = *head;
    if [r0, r1, r2, r3] != [0; 4] || usize::try_from(i32::from_be_bytes([e0, e1, e2, e3])).ok()? != rest.len() {
        return None;
    }
    let plain = rest.is_ascii();
    let (mut born, mut properties) = (None, None);
    let [mut b, mut e, mut f, mut h] = [&b""[..]; 4];
    let (mut j, mut m) = (&b"0"[..], &b"false"[..]);
    while !rest.is_empty() {
        let (name, value) = entry(&mut rest)?;
        keep(texts.as_deref_mut(), plain, name, value)?;
        match name {
            b"g" if born.is_none() && value.len() == 13 => {
                if !value.iter().all(u8::is_ascii_digit) {
                    return None;
                }
                born = Some(std::str::from_utf8(value).ok()?.parse().ok()?);
                continue;
            }
            b"i" if born.is_some() && properties.is_none() => {
                properties = Some(value);
                continue;
            }
            _ => {}
        }
        if !plain && (std::str::from_utf8(name).is_err() || std::str::from_utf8(value).is_err()) {
            return None;
        }
        if value.is_empty() {
            continue;
        }
        match name {
            b"g" | b"i" => return None,
            b"b" => b = value,
            b"e" => e = value,
            b"f" => f = value,
            b"h" => h = value,
            b"j" => j = value,
            b"m" => m = value,
            // nobody looks at these, but the general decoder refuses what they cannot be
            b"d" | b"l" => drop(number::<i32>(value)?),
            b"k" => drop(truth(value)?),
            _ => {}
        }
    }
    Some(SendHeader {
        opaque: i32::from_be_bytes(opaque),
        flag: i64::from(i32::from_be_bytes([f0, f1, f2, f3])),
        topic: Cow::Borrowed((!b.is_empty()).then_some(b)?),
        queue_id: number(e)?,
        sys_flag: number(f)?,
        born_ms: born?,
        user_flag: number(h)?,
        properties: Cow::Borrowed(properties?),
        reconsume: number(j)?,
        batch: truth(m)?,
    })
}

/// The fields that a broker uses of the header of END_TRANSACTION.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndHeader<'a> {
    /// Number of the request.
    pub opaque: i32,
    /// Bits of the request: 1 an answer, 2 wants none.
    pub flag: i64,
    /// The producer group.
    pub group: Cow<'a, [u8]>,
    /// Queue offset of the half message.
    pub index: i64,
    /// Where it lies.
    pub place: i64,
    /// 8 commit, 12 rollback.
    pub decision: i32,
    /// The message's id.
    pub key: Cow<'a, [u8]>,
    /// Whether a broker had asked.
    pub check: bool,
}

/// The fields of an end of a transaction, as they are found.
#[derive(Default)]
struct EndFields<'a> {
    group: Option<Cow<'a, [u8]>>,
    index: Option<i64>,
    place: Option<i64>,
    decision: Option<i32>,
    key: Option<Cow<'a, [u8]>>,
    check: bool,
}

impl<'a> EndFields<'a> {
    fn header(self, opaque: i32, flag: i64) -> Option<EndHeader<'a>> {
        let EndFields { group, index, place, decision, key, check } = self;
        Some(EndHeader { opaque, flag, group: group?, index: index?, place: place?, decision: decision?, key: key?, check })
    }
}

/// Read the header of an end of a transaction that is JSON.
pub fn end_header_json<'a>(header: &'a [u8], mut texts: Texts<'_, 'a>) -> Option<EndHeader<'a>> {
    let (opaque, flag, fields) = enveloped(header, |inner| {
        let mut fields = EndFields::default();
        inner.fields(texts.as_deref_mut(), |inner, name| {
            match name {
                b"producerGroup" => fields.group = Some(inner.string()?),
                b"tranStateTableOffset" => fields.index = Some(inner.integer()?),
                b"commitLogOffset" => fields.place = Some(inner.integer()?),
                b"commitOrRollback" => fields.decision = Some(inner.integer_32()?),
                b"msgId" => fields.key = Some(inner.string()?),
                b"fromTransactionCheck" => fields.check = inner.boolean()?,
                b"stillOpen" => drop(inner.boolean()?),
                _ => inner.skip()?,
            }
            Some(())
        })?;
        Some(fields)
    })?;
    fields.header(opaque, flag)
}

/// Read the header of an end of a transaction that is ROCKETMQ: 21 bytes, of which the code was looked at, and the fields.
pub fn end_header_rocketmq<'a>(header: &'a [u8], mut texts: Texts<'_, 'a>) -> Option<EndHeader<'a>> {
    let (head, mut rest) = header.split_first_chunk::<21>()?;
    let [_, _, _, _, _, opaque @ .., _, _, _, _, _, _, _, _, _, _, _, _] = *head;
    let [.., f0, f1, f2, f3, r0, r1, r2, r3, e0, e1, e2, e3] = *head;
    if [r0, r1, r2, r3] != [0; 4] || usize::try_from(i32::from_be_bytes([e0, e1, e2, e3])).ok()? != rest.len() {
        return None;
    }
    let plain = rest.is_ascii();
    let mut found = EndFields::default();
    let (mut index, mut place, mut decision) = (&b""[..], &b""[..], &b""[..]);
    let (mut check, mut open) = (&b"false"[..], &b"false"[..]);
    while !rest.is_empty() {
        let (name, value) = entry(&mut rest)?;
        if !plain && (std::str::from_utf8(name).is_err() || std::str::from_utf8(value).is_err()) {
            return None;
        }
        keep(texts.as_deref_mut(), plain, name, value)?;
        match name {
            _ if value.is_empty() => {}
            b"producerGroup" => found.group = Some(Cow::Borrowed(value)),
            b"tranStateTableOffset" => index = value,
            b"commitLogOffset" => place = value,
            b"commitOrRollback" => decision = value,
            b"msgId" => found.key = Some(Cow::Borrowed(value)),
            b"fromTransactionCheck" => check = value,
            b"stillOpen" => open = value,
            _ => {}
        }
    }
    truth(open)?;
    (found.index, found.place, found.decision) = (Some(number(index)?), Some(number(place)?), Some(number(decision)?));
    found.check = truth(check)?;
    found.header(i32::from_be_bytes(opaque), i64::from(i32::from_be_bytes([f0, f1, f2, f3])))
}

/// Keep a field, if that is wanted. `None`: it is no text; `plain` says that it is one.
fn keep<'a>(texts: Texts<'_, 'a>, plain: bool, name: &'a [u8], value: &'a [u8]) -> Option<()> {
    let Some(texts) = texts else { return Some(()) };
    if !plain && (std::str::from_utf8(name).is_err() || std::str::from_utf8(value).is_err()) {
        return None;
    }
    if !value.is_empty() {
        texts.push((Cow::Borrowed(name), Cow::Borrowed(value)));
    }
    Some(())
}

/// Take the next name and value from the front.
fn entry<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let (size, behind) = rest.split_first_chunk::<2>()?;
    let (name, behind) = behind.split_at_checked(usize::from(u16::from_be_bytes(*size)))?;
    let (size, behind) = behind.split_first_chunk::<4>()?;
    let (value, behind) = behind.split_at_checked(usize::try_from(u32::from_be_bytes(*size)).ok()?)?;
    *rest = behind;
    Some((name, value))
}

/// A number as the general decoder reads it: no sign but one minus, no blanks, no more bits than it has.
fn number<T: FromStr + Default + PartialOrd>(text: &[u8]) -> Option<T> {
    let text = std::str::from_utf8(text).ok().filter(|text| !text.starts_with('+') && text.len() <= 4300)?;
    text.parse().ok().filter(|number| *number < T::default() || !text.starts_with('-'))
}

fn truth(text: &[u8]) -> Option<bool> {
    match text {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const JSON: &[u8] = br#"{"code":310,"extFields":{"a":"P","b":"T","e":"1","f":"0","g":"1700000000000","h":"-5","i":"KEYS\u0001k\u0002","m":"false"},"flag":0,"opaque":77}"#;

    fn rocketmq(fields: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut ext = Vec::new();
        for (name, value) in fields {
            ext.extend_from_slice(&(name.len() as u16).to_be_bytes());
            ext.extend_from_slice(name);
            ext.extend_from_slice(&(value.len() as u32).to_be_bytes());
            ext.extend_from_slice(value);
        }
        let mut head = b"\x01\x36\0\x01\x99\0\0\0\x4d\0\0\0\0\0\0\0\0".to_vec();
        head.extend_from_slice(&(ext.len() as u32).to_be_bytes());
        head.extend_from_slice(&ext);
        head
    }

    fn usual() -> Vec<u8> {
        rocketmq(&[(b"b", b"T"), (b"e", b"1"), (b"f", b"0"), (b"g", b"1700000000000"), (b"h", b"-5"), (b"i", b"KEYS\x01k\x02")])
    }

    #[test]
    fn both_kinds_of_header_say_the_same() {
        let binary = usual();
        let found = send_header_json(JSON, None);
        assert!(found.is_some());
        assert_eq!(found, send_header_rocketmq(&binary, None));
        assert_eq!(found.map(|header| (header.opaque, header.user_flag, header.born_ms)), Some((77, -5, 1700000000000)));
    }

    #[test]
    fn fields_in_another_order_or_twice_are_left_to_the_general_decoder() {
        let fields: [(&[u8], &[u8]); 6] =
            [(b"b", b"T"), (b"e", b"1"), (b"f", b"0"), (b"i", b""), (b"h", b"0"), (b"g", b"1700000000000")];
        assert_eq!(send_header_rocketmq(&rocketmq(&fields), None), None);
    }

    proptest! {
        #[test]
        fn a_damaged_header_is_read_or_refused(at in 0usize..400, byte in any::<u8>(), cut in 0usize..400) {
            for mut header in [JSON.to_vec(), usual()] {
                if let Some(place) = header.get_mut(at) {
                    *place = byte;
                }
                header.truncate(header.len().saturating_sub(cut / 20));
                let _ = send_header_json(&header, None);
                let _ = head_json(&header, 9);
                let _ = send_header_rocketmq(&header, None);
                let _ = end_header_rocketmq(&header, None);
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(header in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = send_header_json(&header, None);
            let _ = send_header_rocketmq(&header, None);
            let _ = end_header_json(&header, None);
            let _ = end_header_rocketmq(&header, None);
        }

        #[test]
        fn any_json_is_read_or_refused(header in r#"\{("(opaque|extFields|flag|b|e|z)":([0-9.e+-]{1,4}|"(\\u[dD][89a-f][0-9a-f]{2}|[a-z])*"|[{}\[\]]|true),?){0,8}\}*"#) {
            let _ = send_header_json(header.as_bytes(), None);
            let _ = end_header_json(header.as_bytes(), None);
        }
    }
}
