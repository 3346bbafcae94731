//! Signatures of requests: HMAC-SHA1 over the values of the fields, in the order of their names, and the body; in Base64.
//!
//! Nobody's secret is kept as such, and nothing here is shown: only the state of the two hashes that begin with it.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashSet;

use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;

use crate::json::Text;

/// The field that says whose request it is.
pub const ACCESS_KEY: &str = "AccessKey";
/// The field with what some clouds want besides.
pub const SECURITY_TOKEN: &str = "SecurityToken";
/// The field with the signature.
pub const SIGNATURE: &str = "Signature";
const UNIQUE_KEY_QUERY: &[u8] = b"_UNIQUE_KEY_QUERY";
const FIELDS_MAX: usize = 1024;
/// Room for the fields of a signed send.
pub const FIELDS_USUAL: usize = 16;

/// Name and value.
type Field<'a> = (&'a [u8], &'a [u8]);

/// A secret, as it is used.
struct Key(Hmac<Sha1>);

impl Key {
    /// `None`: never, for a secret may have any length.
    fn new(secret: &[u8]) -> Option<Self> {
        Hmac::new_from_slice(secret).ok().map(Key)
    }

    /// Return the signature of a request whose fields are in order.
    fn signature(&self, fields: &[Field<'_>], body: &[u8]) -> [u8; 28] {
        let mut mac = self.0.clone();
        for (name, value) in fields {
            if *name != SIGNATURE.as_bytes() && *name != UNIQUE_KEY_QUERY {
                mac.update(value);
            }
        }
        mac.update(body);
        base64(&mac.finalize().into_bytes().into())
    }
}

/// Return 20 bytes in Base64.
fn base64(bytes: &[u8; 20]) -> [u8; 28] {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut found = [b'='; 28];
    for (three, four) in bytes.chunks(3).zip(found.chunks_mut(4)) {
        let number = three.iter().chain(&[0, 0]).take(3).fold(0_usize, |number, byte| number << 8 | usize::from(*byte));
        for (place, letter) in four.iter_mut().take(three.len().saturating_add(1)).enumerate() {
            let sextet = number >> 18_usize.saturating_sub(place.saturating_mul(6)) & 63;
            *letter = LETTERS.get(sextet).copied().unwrap_or(b'=');
        }
    }
    found
}

/// Return fields in the order of their names as Java compares texts; of those with one name the last one.
fn in_order<'a>(fields: impl Iterator<Item = Field<'a>> + Clone) -> Vec<Field<'a>> {
    // Who signs has the other fields in order already, and its own with capital letters behind them: little is left to sort.
    let is_first = |field: &Field<'_>| field.0.first().is_some_and(|byte| *byte < b'a');
    let mut found = Vec::with_capacity(FIELDS_USUAL);
    found.extend(fields.clone().filter(is_first));
    found.extend(fields.filter(|field| !is_first(field)));
    found.sort_by(|(one, _), (other, _)| compared(one, other));
    if found.iter().zip(found.iter().skip(1)).any(|((one, _), (other, _))| one.first() == other.first() && one == other) {
        found.reverse();
        found.dedup_by_key(|(name, _)| *name);
        found.reverse();
    }
    found
}

/// Compare names by their UTF-16 code units: as their bytes, unless both have characters beyond ASCII.
fn compared(one: &[u8], other: &[u8]) -> Ordering {
    match (one.first(), other.first()) {
        (Some(a), Some(b)) if a != b && a.min(b).is_ascii() => a.cmp(b),
        _ if one.is_ascii() || other.is_ascii() => one.cmp(other),
        _ => {
            let (one, other) = (String::from_utf8_lossy(one), String::from_utf8_lossy(other));
            one.encode_utf16().cmp(other.encode_utf16())
        }
    }
}

/// Signs the requests of one account.
pub struct Signer {
    access_key: String,
    token: String,
    key: Key,
}

impl Signer {
    /// `token` is empty where none is wanted. `None`: never.
    pub fn new(access_key: &str, secret: &[u8], token: &str) -> Option<Self> {
        Some(Signer { access_key: access_key.to_owned(), token: token.to_owned(), key: Key::new(secret)? })
    }

    /// Return the fields that sign a request with these ones: they follow them in its header.
    pub fn sign<'a>(&'a self, fields: &[(&'a str, Cow<'a, str>)], body: &[u8]) -> Vec<(&'a str, Cow<'a, str>)> {
        let mut own = vec![(ACCESS_KEY, Cow::Borrowed(&*self.access_key))];
        if !self.token.is_empty() {
            own.push((SECURITY_TOKEN, Cow::Borrowed(&self.token)));
        }
        let signed = in_order(fields.iter().chain(&own).map(|(name, value)| (name.as_bytes(), value.as_bytes())));
        let signature = self.key.signature(&signed, body);
        own.push((SIGNATURE, Cow::Owned(String::from_utf8_lossy(&signature).into_owned())));
        own
    }
}

/// The sends that one account may make without being looked at again.
pub struct Verifier {
    access_key: Vec<u8>,
    key: Option<Key>,
    bound: bool,
    allowed: HashSet<Vec<u8>>,
}

impl Verifier {
    /// Without a secret it need not sign, and may send everything; `bound`: a request may name no account. `None`: never.
    pub fn new(access_key: &str, secret: Option<&[u8]>, bound: bool) -> Option<Self> {
        let key = match secret {
            Some(secret) => Some(Key::new(secret)?),
            None => None,
        };
        Some(Verifier { access_key: access_key.as_bytes().to_vec(), key, bound, allowed: HashSet::new() })
    }

    /// Let requests with this name of a code and a topic pass from now on.
    pub fn allow(&mut self, asked: Vec<u8>) {
        self.allowed.insert(asked);
    }

    /// Whether a request is this account's, allowed, and signed. Takes as long for a wrong signature as for the right one.
    pub fn passes(&self, asked: &[u8], texts: &[Text<'_>], body: &[u8]) -> bool {
        let fields = in_order(texts.iter().map(|(name, value)| (&**name, &**value)));
        let of = |wanted: &str| fields.iter().find(|(name, _)| *name == wanted.as_bytes()).map(|(_, value)| *value);
        let unsigned = self.bound && of(ACCESS_KEY).is_none();
        if fields.len() > FIELDS_MAX || !(unsigned || of(ACCESS_KEY) == Some(&self.access_key)) {
            return false;
        }
        let Some(key) = &self.key else { return true };
        self.allowed.contains(asked) && (unsigned || same(&key.signature(&fields, body), of(SIGNATURE).unwrap_or(b"")))
    }
}

/// Compare without an end at the first difference.
fn same(one: &[u8; 28], other: &[u8]) -> bool {
    one.len() == other.len() && std::hint::black_box(one.iter().zip(other).fold(0, |found, (a, b)| found | a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FIELDS: [(&str, &str); 4] = [("b", "T"), ("a", "P"), ("i", "K\u{1}v\u{2}"), ("B", "")];

    fn signed(signer: &Signer, body: &[u8]) -> Vec<(String, String)> {
        let fields: Vec<_> = FIELDS.iter().map(|(name, value)| (*name, Cow::Borrowed(*value))).collect();
        let own = signer.sign(&fields, body);
        fields.iter().chain(&own).map(|(name, value)| ((*name).to_owned(), value.clone().into_owned())).collect()
    }

    fn fields(texts: &[(String, String)]) -> Vec<Text<'_>> {
        texts.iter().map(|(name, value)| (Cow::Borrowed(name.as_bytes()), Cow::Borrowed(value.as_bytes()))).collect()
    }

    #[test]
    fn the_known_answer_of_rfc_2202_and_base64() {
        let found = Key::new(b"Jefe").map(|key| key.signature(&[(b"a", b"what do ya ")], b"want for nothing?"));
        assert_eq!(found.as_ref().map(|text| text.as_slice()), Some(b"7/zfauXrL6LSdBbV8YTfnCWafHk=".as_slice()));
    }

    #[test]
    fn names_are_ordered_as_java_compares_texts_and_the_last_of_a_name_counts() {
        let fields: [Field<'_>; 5] =
            [("\u{ffff}".as_bytes(), b"4"), (b"a", b"0"), ("\u{10000}".as_bytes(), b"3"), (b"B", b"1"), (b"a", b"2")];
        assert_eq!(in_order(fields.iter().copied()).iter().map(|(_, value)| *value).collect::<Vec<_>>(), [b"1", b"2", b"3", b"4"]);
    }

    proptest! {
        #[test]
        fn what_was_signed_passes_where_it_is_allowed_and_nothing_else_does(
            secret in proptest::collection::vec(any::<u8>(), 0..90), body in proptest::collection::vec(any::<u8>(), 0..90),
            at in 0usize..7, token in "t?", change in "[a-z]",
        ) {
            let (Some(signer), Some(mut verifier)) = (Signer::new("me", &secret, &token), Verifier::new("me", Some(&secret), false)) else {
                return Err(TestCaseError::fail("a secret has any length"));
            };
            let mut texts = signed(&signer, &body);
            prop_assert!(!verifier.passes(b"T", &fields(&texts), &body));
            verifier.allow(b"T".to_vec());
            prop_assert!(verifier.passes(b"T", &fields(&texts), &body));
            prop_assert!(!verifier.passes(b"U", &fields(&texts), &body));
            prop_assert!(!verifier.passes(b"T", &fields(&texts), &[&body[..], b"x"].concat()));
            let at = at % texts.len();
            if let Some((_, value)) = texts.get_mut(at) {
                value.push_str(&change);
            }
            prop_assert!(!verifier.passes(b"T", &fields(&texts), &body));
            let mine = texts.iter().any(|(name, value)| name == ACCESS_KEY && value == "me");
            prop_assert_eq!(Verifier::new("me", None, false).map(|one| one.passes(b"U", &fields(&texts), &body)), Some(mine));
            // On the account's own connection what names no account need not be signed; what names one is looked at as ever.
            let Some(mut bound) = Verifier::new("me", Some(&secret), true) else {
                return Err(TestCaseError::fail("a secret has any length"));
            };
            bound.allow(b"T".to_vec());
            prop_assert!(!bound.passes(b"T", &fields(&texts), &body));
            texts.retain(|(name, _)| name != ACCESS_KEY);
            prop_assert!(bound.passes(b"T", &fields(&texts), &body));
            prop_assert!(!bound.passes(b"U", &fields(&texts), &body));
            prop_assert!(!verifier.passes(b"T", &fields(&texts), &body));
        }
    }
}
