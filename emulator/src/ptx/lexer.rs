//! Tokens of PTX (PTX ISA, chapter 4).

use super::{PtxError, Span};

/// A token. Words carry dots and double colons: `.reg`, `%tid.x` and `ld.shared::cta.b32` are one word each.
#[derive(Clone, Debug, PartialEq)]
pub enum Token<'a> {
    /// Identifier, directive or opcode.
    Word(&'a str),
    /// Integer literal.
    Int(u64),
    /// `0f...`: bits of an f32.
    F32(u32),
    /// `0d...` or a decimal literal.
    F64(f64),
    /// String literal, quotes removed.
    Text(&'a str),
    /// A single character of punctuation.
    Punct(char),
}

/// Splits `source` into tokens; comments and white space vanish.
pub fn tokenize(source: &str) -> Result<Vec<(Token<'_>, Span)>, PtxError> {
    let mut lexer = Lexer { source, bytes: source.as_bytes(), at: 0, line: 1 };
    let mut tokens = Vec::with_capacity(source.len() / 4);
    while let Some(token) = lexer.next()? {
        tokens.push(token);
    }
    Ok(tokens)
}

struct Lexer<'a> {
    source: &'a str,
    bytes: &'a [u8],
    at: usize,
    line: u32,
}

fn starts_word(c: u8) -> bool {
    c.is_ascii_alphabetic() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

fn continues_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$' | b'.')
}

impl<'a> Lexer<'a> {
    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn error(&self, message: impl Into<String>) -> PtxError {
        let text = self.source.lines().nth(self.line as usize - 1).unwrap_or("").trim().to_string();
        PtxError { line: self.line, message: message.into(), text }
    }

    fn skip_blanks(&mut self) -> Result<(), PtxError> {
        loop {
            match (self.peek(0), self.peek(1)) {
                (b'\n', _) => {
                    self.line += 1;
                    self.at += 1;
                }
                (b' ' | b'\t' | b'\r', _) => self.at += 1,
                (b'/', b'/') => {
                    while self.at < self.bytes.len() && self.peek(0) != b'\n' {
                        self.at += 1;
                    }
                }
                (b'/', b'*') => {
                    while !(self.peek(0) == b'*' && self.peek(1) == b'/') {
                        if self.at >= self.bytes.len() {
                            return Err(self.error("comment without an end"));
                        }
                        self.line += u32::from(self.peek(0) == b'\n');
                        self.at += 1;
                    }
                    self.at += 2;
                }
                _ => return Ok(()),
            }
        }
    }

    fn next(&mut self) -> Result<Option<(Token<'a>, Span)>, PtxError> {
        self.skip_blanks()?;
        if self.at >= self.bytes.len() || self.peek(0) == 0 {
            return Ok(None);
        }
        let (start, line, c) = (self.at, self.line, self.peek(0));
        let token = if c.is_ascii_digit() {
            self.number()?
        } else if starts_word(c) && (c != b'.' || starts_word(self.peek(1)) || self.peek(1).is_ascii_digit()) {
            self.word()
        } else if c == b'"' {
            self.text()?
        } else {
            self.at += 1;
            if !c.is_ascii_graphic() {
                return Err(self.error("a character that PTX does not know"));
            }
            Token::Punct(c as char)
        };
        Ok(Some((token, Span { start: start as u32, end: self.at as u32, line })))
    }

    fn word(&mut self) -> Token<'a> {
        let start = self.at;
        self.at += 1;
        loop {
            if continues_word(self.peek(0)) {
                self.at += 1;
            } else if self.peek(0) == b':' && self.peek(1) == b':' && continues_word(self.peek(2)) {
                self.at += 2;
            } else {
                return Token::Word(&self.source[start..self.at]);
            }
        }
    }

    fn text(&mut self) -> Result<Token<'a>, PtxError> {
        let start = self.at + 1;
        self.at += 1;
        while self.peek(0) != b'"' {
            if self.at >= self.bytes.len() {
                return Err(self.error("string without an end"));
            }
            self.line += u32::from(self.peek(0) == b'\n');
            self.at += if self.peek(0) == b'\\' { 2 } else { 1 };
        }
        self.at += 1;
        Ok(Token::Text(&self.source[start..self.at - 1]))
    }

    fn number(&mut self) -> Result<Token<'a>, PtxError> {
        let start = self.at;
        while self.peek(0).is_ascii_alphanumeric()
            || self.peek(0) == b'.'
            || (matches!(self.peek(0), b'+' | b'-') && self.is_exponent_sign(start))
        {
            self.at += 1;
        }
        let text = &self.source[start..self.at];
        self.parse_number(text).ok_or_else(|| self.error(format!("`{text}` is no number")))
    }

    /// `1.5e-3`: the sign belongs to the number; `0xe+4` is a sum.
    fn is_exponent_sign(&self, start: usize) -> bool {
        let so_far = &self.bytes[start..self.at];
        matches!(so_far.last(), Some(b'e' | b'E')) && so_far.contains(&b'.')
    }

    fn parse_number(&self, text: &str) -> Option<Token<'a>> {
        let prefix = text.get(..2).map(str::to_ascii_lowercase).unwrap_or_default();
        let digits = text.get(2..).unwrap_or("");
        let integer = |s: &str, radix| u64::from_str_radix(s.trim_end_matches(['u', 'U']), radix).ok().map(Token::Int);
        match prefix.as_str() {
            "0f" if digits.len() == 8 => u32::from_str_radix(digits, 16).ok().map(Token::F32),
            "0d" if digits.len() == 16 => u64::from_str_radix(digits, 16).ok().map(|bits| Token::F64(f64::from_bits(bits))),
            "0x" => integer(digits, 16),
            "0b" => integer(digits, 2),
            _ if text.contains('.') => text.parse().ok().map(Token::F64),
            _ if text.len() > 1 && text.starts_with('0') => integer(&text[1..], 8).or_else(|| integer(text, 10)),
            _ => integer(text, 10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<Token<'_>> {
        tokenize(source).unwrap().into_iter().map(|(token, _)| token).collect()
    }

    #[test]
    fn words_keep_dots_and_double_colons() {
        assert_eq!(
            words("L1: ld.shared::cta.b32 %r1, [%tid.x+4]; // gone"),
            vec![
                Token::Word("L1"),
                Token::Punct(':'),
                Token::Word("ld.shared::cta.b32"),
                Token::Word("%r1"),
                Token::Punct(','),
                Token::Punct('['),
                Token::Word("%tid.x"),
                Token::Punct('+'),
                Token::Int(4),
                Token::Punct(']'),
                Token::Punct(';'),
            ]
        );
    }

    #[test]
    fn numbers_of_every_form() {
        assert_eq!(
            words("0x1F 017 0b101 7U 0f3F800000 1.5e-3 08"),
            vec![Token::Int(31), Token::Int(15), Token::Int(5), Token::Int(7), Token::F32(0x3f80_0000), Token::F64(1.5e-3), Token::Int(8),]
        );
        assert!(tokenize("0xZZ").is_err());
    }

    #[test]
    fn lines_are_counted_through_comments() {
        let tokens = tokenize("a\n/* x\n y */ b\n// c\nd").unwrap();
        assert_eq!(tokens.iter().map(|(_, span)| span.line).collect::<Vec<_>>(), vec![1, 3, 5]);
    }
}
