//! Integer expressions in `i`.

/// Evaluates `text` with `i`.
pub fn evaluate(text: &str, i: i64) -> Result<i64, String> {
    let mut parser = Parser { text: text.as_bytes(), at: 0, depth: 0, i };
    let value = parser.binary(0)?;
    parser.skip_blanks();
    if parser.at < parser.text.len() { Err(format!("`{text}` has something behind its end")) } else { Ok(value) }
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    depth: u32,
    i: i64,
}

/// Signs and parentheses inside each other.
const MAX_NESTING: u32 = 64;

/// Operators, from the weakest.
const LEVELS: [&[&str]; 7] = [&["==", "<"], &["|"], &["^"], &["&"], &["<<", ">>"], &["+", "-"], &["*", "/", "%"]];

impl Parser<'_> {
    fn skip_blanks(&mut self) {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
    }

    fn accept(&mut self, token: &str) -> bool {
        self.skip_blanks();
        let found = self.text[self.at..].starts_with(token.as_bytes());
        if found {
            self.at += token.len();
        }
        found
    }

    /// Whether `<` here is the first half of `<<`.
    fn is_shift(&mut self, operator: &str) -> bool {
        self.skip_blanks();
        operator == "<" && self.text[self.at..].starts_with(b"<<")
    }

    fn binary(&mut self, level: usize) -> Result<i64, String> {
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        while let Some(operator) = operators.iter().find(|operator| !self.is_shift(operator) && self.accept(operator)) {
            let right = self.binary(level + 1)?;
            left = match *operator {
                "==" => i64::from(left == right),
                "<" => i64::from(left < right),
                "|" => left | right,
                "^" => left ^ right,
                "&" => left & right,
                "<<" => left.wrapping_shl(right as u32),
                ">>" => left.wrapping_shr(right as u32),
                "+" => left.wrapping_add(right),
                "-" => left.wrapping_sub(right),
                "*" => left.wrapping_mul(right),
                "/" => left.checked_div(right).ok_or("division by zero")?,
                _ => left.checked_rem(right).ok_or("division by zero")?,
            };
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<i64, String> {
        if self.depth == MAX_NESTING {
            return Err(format!("an expression has more than {MAX_NESTING} levels of nesting"));
        }
        self.depth += 1;
        let value = self.operand();
        self.depth -= 1;
        value
    }

    fn operand(&mut self) -> Result<i64, String> {
        if self.accept("-") {
            return Ok(self.unary()?.wrapping_neg());
        }
        if self.accept("(") {
            let value = self.binary(0)?;
            return if self.accept(")") { Ok(value) } else { Err("`)` is missing".to_string()) };
        }
        if self.accept("i") {
            return Ok(self.i);
        }
        let start = self.at;
        while self.text.get(self.at).is_some_and(u8::is_ascii_alphanumeric) {
            self.at += 1;
        }
        let digits = std::str::from_utf8(&self.text[start..self.at]).unwrap_or("");
        let value = match digits.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).map(|value| value as i64),
            None => digits.parse(),
        };
        value.map_err(|_| format!("`{digits}` is no number"))
    }
}

#[cfg(test)]
mod tests {
    use super::evaluate;

    #[test]
    fn precedence_and_parentheses() {
        assert_eq!(evaluate("1 + i * 3 % 5", 4), Ok(3));
        assert_eq!(evaluate("(i ^ (i >> 3 & 7)) << 1", 13), Ok((13 ^ 1) << 1));
        assert_eq!(evaluate("-i + 0x10", 1), Ok(15));
        assert_eq!(evaluate("(i % 8 == 3) + (i << 1 < 4)", 11), Ok(1));
        assert!(evaluate(&"(".repeat(100_000), 0).is_err() && evaluate(&"-".repeat(100_000), 0).is_err());
        assert!(evaluate("1 +", 0).is_err() && evaluate("1 2", 0).is_err() && evaluate("1 / 0", 0).is_err());
    }
}
