//! A reader of JSON text, which is known to be UTF-8: strict, goes forward once and keeps nothing. `None` everywhere: this is no such text.

use std::borrow::Cow;

/// Name and value of a field, which are UTF-8; borrowed where nothing is escaped.
pub type Text<'a> = (Cow<'a, [u8]>, Cow<'a, [u8]>);

const DEPTH_MAX: usize = 64;

/// Where a reading stands.
pub struct Scanner<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    /// Begin at the start of a text.
    pub fn new(data: &'a [u8]) -> Self {
        Scanner { data, at: 0 }
    }

    /// Whether nothing but white space is left.
    pub fn at_end(&mut self) -> bool {
        self.space();
        self.at >= self.data.len()
    }

    /// Read an object: `field` is given each name and must read its value.
    pub fn object(&mut self, mut field: impl FnMut(&mut Self, &[u8]) -> Option<()>) -> Option<()> {
        self.members(|inner, name| field(inner, &name))
    }

    /// Read an object, and keep all of its names and values in `texts`, if that is there: values are texts then.
    pub fn fields(
        &mut self,
        mut texts: Option<&mut Vec<Text<'a>>>,
        mut field: impl FnMut(&mut Self, &[u8]) -> Option<()>,
    ) -> Option<()> {
        if let Some(texts) = texts.as_deref_mut() {
            texts.clear();
        }
        self.members(|inner, name| {
            let begin = inner.at;
            field(inner, &name)?;
            if let Some(texts) = texts.as_deref_mut() {
                texts.push((name, Scanner { data: inner.data, at: begin }.string()?));
            }
            Some(())
        })
    }

    #[inline]
    fn members(&mut self, mut field: impl FnMut(&mut Self, Cow<'a, [u8]>) -> Option<()>) -> Option<()> {
        self.space();
        self.eat(b'{')?;
        self.space();
        if self.peek()? == b'}' {
            return self.eat(b'}');
        }
        loop {
            self.space();
            let name = self.string()?;
            self.space();
            self.eat(b':')?;
            self.space();
            field(self, name)?;
            self.space();
            match self.next()? {
                b',' => {}
                b'}' => return Some(()),
                _ => return None,
            }
        }
    }

    /// Read a whole number, which may stand in a string.
    pub fn integer(&mut self) -> Option<i64> {
        if self.peek()? == b'"' {
            let text = self.string()?;
            let mut inner = Scanner::new(&text);
            let number = integer_of(inner.number()?)?;
            return (inner.at == text.len()).then_some(number);
        }
        integer_of(self.number()?)
    }

    /// Read a whole number of 32 bits.
    pub fn integer_32(&mut self) -> Option<i32> {
        i32::try_from(self.integer()?).ok()
    }

    /// Read a whole number of 32 bits that stands in no string.
    pub fn plain_32(&mut self) -> Option<i32> {
        i32::try_from(integer_of(self.number()?)?).ok()
    }

    /// Read a truth value, which may stand in a string, or be 0 or 1.
    pub fn boolean(&mut self) -> Option<bool> {
        match self.peek()? {
            b't' => self.word(b"true").map(|()| true),
            b'f' => self.word(b"false").map(|()| false),
            b'"' => {
                let text = self.string()?;
                if text.eq_ignore_ascii_case(b"true") || *text == *b"1" {
                    Some(true)
                } else if text.eq_ignore_ascii_case(b"false") || matches!(&*text, b"0" | b"-0") {
                    Some(false)
                } else {
                    None
                }
            }
            _ => match self.number()? {
                b"1" => Some(true),
                b"0" | b"-0" => Some(false),
                _ => None,
            },
        }
    }

    /// Read over any value.
    pub fn skip(&mut self) -> Option<()> {
        self.skip_to(DEPTH_MAX)
    }

    fn skip_to(&mut self, depth: usize) -> Option<()> {
        match self.peek()? {
            b'"' => self.string().map(|_| ()),
            b'{' => {
                let depth = depth.checked_sub(1)?;
                self.object(|inner, _| inner.skip_to(depth))
            }
            b'[' => {
                let depth = depth.checked_sub(1)?;
                self.eat(b'[')?;
                self.space();
                if self.peek()? == b']' {
                    return self.eat(b']');
                }
                loop {
                    self.space();
                    self.skip_to(depth)?;
                    self.space();
                    match self.next()? {
                        b',' => {}
                        b']' => return Some(()),
                        _ => return None,
                    }
                }
            }
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => self.number().map(|_| ()),
        }
    }

    fn peek(&self) -> Option<u8> {
        self.data.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let found = self.peek()?;
        self.at = self.at.saturating_add(1);
        Some(found)
    }

    fn eat(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        let rest = self.data.get(self.at..)?;
        rest.starts_with(word).then(|| self.at = self.at.saturating_add(word.len()))
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at = self.at.saturating_add(1);
        }
    }

    /// Read over a number and return its text.
    fn number(&mut self) -> Option<&'a [u8]> {
        let begin = self.at;
        if self.peek() == Some(b'-') {
            self.at = self.at.saturating_add(1);
        }
        if self.digits()? > 1 && self.data.get(begin..self.at)?.iter().find(|b| **b != b'-') == Some(&b'0') {
            return None;
        }
        if self.peek() == Some(b'.') {
            self.at = self.at.saturating_add(1);
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at = self.at.saturating_add(1);
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at = self.at.saturating_add(1);
            }
            self.digits()?;
        }
        self.data.get(begin..self.at)
    }

    fn digits(&mut self) -> Option<usize> {
        let count = self.data.get(self.at..)?.iter().take_while(|b| b.is_ascii_digit()).count();
        self.at = self.at.saturating_add(count);
        (count > 0).then_some(count)
    }

    /// Read a string: borrowed where nothing in it is escaped.
    pub fn string(&mut self) -> Option<Cow<'a, [u8]>> {
        self.eat(b'"')?;
        let rest = self.data.get(self.at..)?;
        let plain = plain_bytes(rest);
        self.at = self.at.saturating_add(plain);
        if self.peek()? == b'"' {
            self.at = self.at.saturating_add(1);
            return rest.get(..plain).map(Cow::Borrowed);
        }
        let mut found = Vec::with_capacity(rest.len().min(256));
        found.extend_from_slice(rest.get(..plain)?);
        loop {
            match self.next()? {
                b'"' => return Some(Cow::Owned(found)),
                b'\\' => self.escaped(&mut found)?,
                _ => return None,
            }
            let rest = self.data.get(self.at..)?;
            let plain = plain_bytes(rest);
            found.extend_from_slice(rest.get(..plain)?);
            self.at = self.at.saturating_add(plain);
        }
    }

    fn escaped(&mut self, found: &mut Vec<u8>) -> Option<()> {
        let byte = match self.next()? {
            byte @ (b'"' | b'\\' | b'/') => byte,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let first = self.hex()?;
                let mut point = first;
                if (0xD800..0xDC00).contains(&first) {
                    self.eat(b'\\')?;
                    self.eat(b'u')?;
                    let second = self.hex()?;
                    if !(0xDC00..0xE000).contains(&second) {
                        return None;
                    }
                    point = ((first & 0x3FF) << 10 | second & 0x3FF).saturating_add(0x10000);
                }
                let mut bytes = [0; 4];
                // alone, half of a pair is no character
                found.extend_from_slice(char::from_u32(point)?.encode_utf8(&mut bytes).as_bytes());
                return Some(());
            }
            _ => return None,
        };
        found.push(byte);
        Some(())
    }

    fn hex(&mut self) -> Option<u32> {
        let mut found = 0;
        for _ in 0..4 {
            found = found << 4 | char::from(self.next()?).to_digit(16)?;
        }
        Some(found)
    }
}

/// How many bytes stand before the end of a string, an escape, or what may not be in one.
fn plain_bytes(data: &[u8]) -> usize {
    let mut at = 0usize;
    while let Some(eight) = data.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let marked = marked(u64::from_le_bytes(*eight));
        if marked != 0 {
            return at.saturating_add((marked.trailing_zeros() / 8) as usize);
        }
        at = at.saturating_add(8);
    }
    let rest = data.get(at..).unwrap_or(&[]);
    let found = rest.iter().position(|b| *b < 0x20 || *b == b'"' || *b == b'\\').unwrap_or(rest.len());
    at.saturating_add(found)
}

/// Mark in eight bytes those that end plain text: the lowest mark is right, those above it may be wrong.
fn marked(eight: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let zero = |bytes: u64| bytes.wrapping_sub(ONES) & !bytes;
    let control = eight.wrapping_sub(ONES * 0x20) & !eight;
    (control | zero(eight ^ (ONES * 0x22)) | zero(eight ^ (ONES * 0x5C))) & (ONES * 0x80)
}

/// The value of a number's text, when it is whole and written so.
fn integer_of(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn plain_text_ends_where_its_first_other_byte_stands(data in proptest::collection::vec(any::<u8>(), 0..40)) {
            let slowly = data.iter().take_while(|b| **b >= 0x20 && **b != b'"' && **b != b'\\').count();
            prop_assert_eq!(plain_bytes(&data), slowly);
        }

        #[test]
        fn plain_text_of_letters_ends_at_the_quote(text in "[ -!#-\\[\\]-~é]{0,40}") {
            prop_assert_eq!(plain_bytes(format!("{text}\"x").as_bytes()), text.len());
        }
    }
}
