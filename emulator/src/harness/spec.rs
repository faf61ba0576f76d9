//! The comments at the head of a PTX file.

use half::{bf16, f16};

use super::expression::evaluate;

/// What a file says about itself.
#[derive(Clone, Debug, Default)]
pub struct Spec {
    /// The kernel, if the file has several.
    pub kernel: Option<String>,
    /// CTAs.
    pub grid: [u32; 3],
    /// Threads of a CTA.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared_bytes: u32,
    /// Arguments in order.
    pub arguments: Vec<Argument>,
    /// Texts that the report of a failing launch must contain.
    pub expected: Vec<String>,
    /// Code of a failing launch.
    pub expected_code: Option<u32>,
    /// Text of the log of a module that must be refused.
    pub expected_load: Option<String>,
    /// Seeds to try.
    pub schedules: u64,
    /// Instructions that a CTA may execute, if the file limits them.
    pub budget: Option<u64>,
}

/// An argument of a kernel.
#[derive(Clone, Debug)]
pub enum Argument {
    /// Device memory.
    Buffer(Buffer),
    /// The bytes of a number.
    Scalar(Vec<u8>),
    /// A tensor map.
    Map(Map),
}

/// Device memory whose elements an expression gives.
#[derive(Clone, Debug)]
pub struct Buffer {
    ty: Element,
    count: usize,
    expression: Option<String>,
    /// Whether the expression says what the buffer holds afterwards, not before.
    pub is_output: bool,
}

/// A tensor map over an earlier buffer.
#[derive(Clone, Debug, Default)]
pub struct Map {
    /// Which argument it describes.
    pub buffer: usize,
    /// `CUtensorMapDataType`
    pub element: u32,
    pub dims: Vec<u64>,
    pub strides: Vec<u64>,
    pub boxes: Vec<u32>,
    pub element_strides: Vec<u32>,
    pub swizzle: u32,
    pub fill_nan: bool,
    /// Added to the buffer's address.
    pub offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Element {
    U8,
    U16,
    U32,
    U64,
    F16,
    BF16,
    F32,
}

impl Element {
    fn parse(name: &str) -> Result<Self, String> {
        Ok(match name {
            "u8" => Element::U8,
            "u16" => Element::U16,
            "u32" => Element::U32,
            "u64" => Element::U64,
            "f16" => Element::F16,
            "bf16" => Element::BF16,
            "f32" => Element::F32,
            _ => return Err(format!("`{name}` is no element type")),
        })
    }

    fn bytes(self) -> usize {
        match self {
            Element::U8 => 1,
            Element::U16 | Element::F16 | Element::BF16 => 2,
            Element::U32 | Element::F32 => 4,
            Element::U64 => 8,
        }
    }

    fn encode(self, value: i64) -> Vec<u8> {
        match self {
            Element::F16 => f16::from_f64(value as f64).to_le_bytes().to_vec(),
            Element::BF16 => bf16::from_f64(value as f64).to_le_bytes().to_vec(),
            Element::F32 => (value as f32).to_le_bytes().to_vec(),
            integer => value.to_le_bytes()[..integer.bytes()].to_vec(),
        }
    }

    /// `CUtensorMapDataType`
    fn map_type(self) -> u32 {
        match self {
            Element::U8 => 0,
            Element::U16 => 1,
            Element::U32 => 2,
            Element::U64 => 4,
            Element::F16 => 6,
            Element::F32 => 7,
            Element::BF16 => 9,
        }
    }
}

impl Buffer {
    /// Bytes of an element.
    pub fn element_bytes(&self) -> usize {
        self.ty.bytes()
    }

    /// Bytes in all.
    pub fn bytes(&self) -> usize {
        self.count * self.ty.bytes()
    }

    /// The elements that the expression gives.
    pub fn values(&self) -> Result<Vec<u8>, String> {
        let text = self.expression.as_deref().unwrap_or("0");
        let mut bytes = Vec::with_capacity(self.bytes());
        for i in 0..self.count {
            bytes.extend(self.ty.encode(evaluate(text, i as i64)?));
        }
        Ok(bytes)
    }

    /// What the buffer holds before the launch; an output holds ones, so that what is not written shows.
    pub fn initial(&self) -> Result<Option<Vec<u8>>, String> {
        match (self.is_output, &self.expression) {
            (true, _) => Ok(Some(vec![0xff; self.bytes()])),
            (false, Some(_)) => self.values().map(Some),
            (false, None) => Ok(None),
        }
    }

    /// An element as text.
    pub fn show(&self, bytes: &[u8]) -> String {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(wide);
        match self.ty {
            Element::F16 => f16::from_bits(bits as u16).to_string(),
            Element::BF16 => bf16::from_bits(bits as u16).to_string(),
            Element::F32 => f32::from_bits(bits as u32).to_string(),
            _ => bits.to_string(),
        }
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is no number"))
}

fn numbers<T: std::str::FromStr>(text: &str) -> Result<Vec<T>, String> {
    text.split(',').map(number).collect()
}

/// Parses an argument such as `in u32[64] = i`.
pub fn parse_argument(text: &str) -> Result<Argument, String> {
    let (kind, rest) = text.trim().split_once(' ').ok_or_else(|| format!("`{text}` is no argument"))?;
    match kind {
        "in" | "out" | "scratch" => {
            let (shape, expression) = match rest.split_once('=') {
                Some((shape, expression)) => (shape.trim(), Some(expression.trim().to_string())),
                None => (rest.trim(), None),
            };
            let (ty, count) = shape.strip_suffix(']').and_then(|s| s.split_once('[')).ok_or_else(|| format!("`{shape}` is no array"))?;
            if (kind == "scratch") == expression.is_some() {
                return Err(format!("`{text}`: in and out need an expression, scratch has none"));
            }
            Ok(Argument::Buffer(Buffer { ty: Element::parse(ty)?, count: number(count)?, expression, is_output: kind == "out" }))
        }
        "map" => parse_map(rest).map(Argument::Map),
        "f32" => Ok(Argument::Scalar(number::<f32>(rest.trim())?.to_le_bytes().to_vec())),
        ty => {
            let (ty, value) = (Element::parse(ty)?, evaluate(rest, 0)?);
            let bits = 8 * ty.bytes() as u32;
            let is_integer = matches!(ty, Element::U8 | Element::U16 | Element::U32);
            if is_integer && !(-(1i64 << (bits - 1))..1i64 << bits).contains(&value) {
                return Err(format!("`{text}`: {value} does not fit into {bits} bits"));
            }
            Ok(Argument::Scalar(ty.encode(value)))
        }
    }
}

fn parse_map(text: &str) -> Result<Map, String> {
    let mut words = text.split_whitespace();
    let mut next = || words.next().ok_or_else(|| "the map's description ends too early".to_string());
    let mut map = Map { buffer: number(next()?)?, element: Element::parse(next()?)?.map_type(), ..Map::default() };
    while let Ok(word) = next() {
        let value = next()?;
        match word {
            "dims" => map.dims = numbers(value)?,
            "strides" => map.strides = numbers(value)?,
            "box" => map.boxes = numbers(value)?,
            "element_strides" => map.element_strides = numbers(value)?,
            "offset" => map.offset = number(value)?,
            "swizzle" => {
                map.swizzle = match value {
                    "0" => 0,
                    "32" => 1,
                    "64" => 2,
                    "128" => 3,
                    _ => return Err(format!("`{value}` is no swizzle")),
                };
            }
            "fill" => map.fill_nan = value == "nan",
            _ => return Err(format!("`{word}` is not known in a map")),
        }
    }
    if map.element_strides.is_empty() {
        map.element_strides = vec![1; map.dims.len()];
    }
    if map.boxes.len() != map.dims.len() || map.strides.len() + 1 != map.dims.len() || map.element_strides.len() != map.dims.len() {
        return Err("dims, strides, box and element_strides have lengths that do not fit".to_string());
    }
    Ok(map)
}

impl Spec {
    /// Reads the comments of a file.
    pub fn parse(source: &str) -> Result<Self, String> {
        let mut spec = Spec { grid: [1; 3], block: [1; 3], schedules: 1, ..Spec::default() };
        for line in source.lines() {
            let Some((key, value)) = line.strip_prefix("// ").and_then(|line| line.split_once(':')) else { continue };
            let value = value.trim();
            match key {
                "launch" => spec.parse_launch(value)?,
                "arg" => spec.arguments.push(parse_argument(value)?),
                "expect" => spec.expected.push(value.to_string()),
                "expect code" => spec.expected_code = Some(number(value)?),
                "expect load" => spec.expected_load = Some(value.to_string()),
                "budget" => spec.budget = Some(number(value)?),
                "schedules" => spec.schedules = number(value)?,
                _ => {}
            }
        }
        Ok(spec)
    }

    fn parse_launch(&mut self, text: &str) -> Result<(), String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        for pair in words.chunks(2) {
            let [key, value] = pair else { return Err("launch: words come in pairs".to_string()) };
            let shape = || -> Result<[u32; 3], String> {
                let mut shape = [1; 3];
                let given = numbers::<u32>(value)?;
                if given.len() > 3 {
                    return Err(format!("launch: `{value}` has more than three axes"));
                }
                for (to, from) in shape.iter_mut().zip(given) {
                    *to = from;
                }
                Ok(shape)
            };
            match *key {
                "grid" => self.grid = shape()?,
                "block" => self.block = shape()?,
                "shared" => self.shared_bytes = number(value)?,
                "kernel" => self.kernel = Some((*value).to_string()),
                _ => return Err(format!("launch: `{key}` is not known")),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_head() {
        let spec = Spec::parse(
            "// launch: grid 2,3 block 128 shared 1024\n// arg: in f16[4] = i - 1\n// arg: out u32[2] = 7\n// arg: u32 5\n\
             // arg: map 0 f16 dims 64,8 strides 128 box 64,8 swizzle 128\n// expect: race\n.version 8.3\n",
        )
        .unwrap();
        assert_eq!((spec.grid, spec.block, spec.shared_bytes), ([2, 3, 1], [128, 1, 1], 1024));
        let Argument::Buffer(buffer) = &spec.arguments[0] else { panic!("no buffer") };
        assert_eq!(buffer.values().unwrap()[..2], f16::from_f32(-1.0).to_le_bytes());
        assert!(matches!(&spec.arguments[3], Argument::Map(map) if map.swizzle == 3));
        assert_eq!(spec.expected, ["race"]);
        assert!(Spec::parse("// arg: in u32[2]").is_err());
        assert!(Spec::parse("// arg: u32 4294967296").is_err() && Spec::parse("// arg: u32 4294967295").is_ok());
        assert!(Spec::parse("// launch: grid 1,1,1,1 block 32").is_err());
    }
}
