//! Tensor maps: what `cuTensorMapEncodeTiled` checks, how this emulator lays it out in the 128 opaque bytes, and swizzling.

/// Element types, in the driver's order (`CUtensorMapDataType`).
const ELEMENT_BYTES: [u32; 13] = [1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4];
/// Types that are floating point, in the same order.
const IS_FLOAT: [bool; 13] = [false, false, false, false, false, false, true, true, true, true, true, true, true];
/// Marks the bytes as a map of this emulator.
const MAGIC: u32 = 0x7e50_4d41;

/// How 16-byte chunks are exchanged in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swizzle {
    None,
    B32,
    B64,
    B128,
}

impl Swizzle {
    /// Where the byte of an unswizzled address lies: address bits from 4 up are combined with those from 7 up.
    #[inline]
    pub fn apply(self, address: u32) -> u32 {
        let mask = match self {
            Swizzle::None => return address,
            Swizzle::B32 => 1,
            Swizzle::B64 => 3,
            Swizzle::B128 => 7,
        };
        address ^ ((address >> 7 & mask) << 4)
    }

    /// Bytes of a row that are exchanged among themselves.
    pub fn span(self) -> u32 {
        match self {
            Swizzle::None => 16,
            Swizzle::B32 => 32,
            Swizzle::B64 => 64,
            Swizzle::B128 => 128,
        }
    }
}

/// A decoded tensor map.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorMap {
    pub address: u64,
    /// Index into the driver's element types.
    pub element: u32,
    pub rank: u32,
    pub dims: [u64; 5],
    /// Byte strides; the innermost is the element's size.
    pub strides: [u64; 5],
    pub box_dims: [u32; 5],
    pub element_strides: [u32; 5],
    pub interleave: u32,
    pub swizzle: Swizzle,
    /// Whether elements outside are NaN instead of zero.
    pub fill_nan: bool,
}

impl TensorMap {
    /// Bytes of an element.
    pub fn element_bytes(&self) -> u32 {
        ELEMENT_BYTES[self.element as usize]
    }

    /// Elements of the box along each dimension, as shared memory holds them.
    pub fn box_elements(&self) -> [u32; 5] {
        std::array::from_fn(|i| if i < self.rank as usize { self.box_dims[i].div_ceil(self.element_strides[i]) } else { 1 })
    }

    /// Bytes of the box in shared memory.
    pub fn box_bytes(&self) -> u32 {
        self.box_elements().iter().product::<u32>() * self.element_bytes()
    }

    /// Checks the arguments of `cuTensorMapEncodeTiled`. The error says which one is wrong.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        element: u32,
        rank: u32,
        address: u64,
        dims: &[u64],
        strides: &[u64],
        box_dims: &[u32],
        element_strides: &[u32],
        interleave: u32,
        swizzle: u32,
        fill: u32,
    ) -> Result<Self, String> {
        let Some(&element_bytes) = ELEMENT_BYTES.get(element as usize) else {
            return Err(format!("the element type {element} does not exist"));
        };
        if interleave > 2 || swizzle > 3 || fill > 1 {
            return Err("interleave, swizzle or fill is out of range".to_string());
        }
        let least_rank = if interleave == 0 { 1 } else { 3 };
        if !(least_rank..=5).contains(&rank) {
            return Err(format!("the rank {rank} is out of range"));
        }
        let rank_index = rank as usize;
        let address_align = if interleave == 2 { 32 } else { 16 };
        if !address.is_multiple_of(address_align) || address == 0 {
            return Err(format!("the address 0x{address:x} is no multiple of {address_align}"));
        }
        let swizzle = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128][swizzle as usize];
        if interleave == 2 && swizzle != Swizzle::B32 {
            return Err("32-byte interleave needs the 32-byte swizzle".to_string());
        }
        if fill == 1 && !IS_FLOAT[element as usize] {
            return Err("a NaN fill needs a floating-point type".to_string());
        }
        let mut map = Self {
            address,
            element,
            rank,
            dims: [1; 5],
            strides: [0; 5],
            box_dims: [1; 5],
            element_strides: [1; 5],
            interleave,
            swizzle,
            fill_nan: fill == 1,
        };
        map.strides[0] = u64::from(element_bytes);
        for i in 0..rank_index {
            check_dimension(i, dims[i], box_dims[i], element_strides[i])?;
            map.dims[i] = dims[i];
            map.box_dims[i] = box_dims[i];
            map.element_strides[i] = if i == 0 && interleave == 0 { 1.max(element_strides[0]) } else { element_strides[i] };
            if i > 0 {
                let stride = strides[i - 1];
                if !stride.is_multiple_of(address_align) || stride >= 1 << 40 {
                    return Err(format!("the stride {stride} of dimension {i} is no multiple of {address_align} below 2^40"));
                }
                map.strides[i] = stride;
            }
        }
        map.check_strides(strides)?;
        let inner = map.box_elements()[0] * element_bytes;
        if interleave == 0 && !inner.is_multiple_of(16) {
            return Err(format!("the box is {inner} bytes wide, which is no multiple of 16"));
        }
        if interleave == 0 && swizzle != Swizzle::None && inner > swizzle.span() {
            return Err(format!("the box is {inner} bytes wide, more than the swizzle's span of {}", swizzle.span()));
        }
        if map.box_bytes() > 228 * 1024 {
            return Err("the box is larger than shared memory".to_string());
        }
        Ok(map)
    }

    /// Each stride must reach over the dimension within it.
    fn check_strides(&self, strides: &[u64]) -> Result<(), String> {
        for i in 1..self.rank as usize {
            let inner = if i == 1 { self.dims[0] * self.strides[0] } else { 0 };
            if self.dims[i] > 1 && strides[i - 1] < inner {
                return Err(format!("the stride {} of dimension {i} is below the {inner} bytes of the dimension within", strides[i - 1]));
            }
        }
        Ok(())
    }

    /// The 128 bytes that stand for this map.
    pub fn encode(&self) -> [u64; 16] {
        let mut words = [0; 16];
        words[0] = u64::from(MAGIC) << 32 | u64::from(self.element) << 24 | u64::from(self.rank) << 16;
        words[0] |= u64::from(self.interleave) << 8 | (self.swizzle as u64) << 4 | u64::from(self.fill_nan);
        words[1] = self.address;
        for i in 0..5 {
            words[2 + i] = (self.dims[i] - 1) | u64::from(self.element_strides[i]) << 32 | u64::from(self.box_dims[i]) << 40;
            words[7 + i] = self.strides[i];
        }
        words[15] = checksum(&words);
        words
    }

    /// Reads back what `encode` wrote; `None` if these bytes are no map, or were changed.
    pub fn decode(words: &[u64; 16]) -> Option<Self> {
        if words[0] >> 32 != u64::from(MAGIC) || words[15] != checksum(words) {
            return None;
        }
        let swizzle = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128][(words[0] >> 4 & 3) as usize];
        Some(Self {
            address: words[1],
            element: (words[0] >> 24 & 0xff) as u32,
            rank: (words[0] >> 16 & 0xff) as u32,
            dims: std::array::from_fn(|i| (words[2 + i] & 0xffff_ffff) + 1),
            strides: std::array::from_fn(|i| words[7 + i]),
            box_dims: std::array::from_fn(|i| (words[2 + i] >> 40 & 0xffff) as u32),
            element_strides: std::array::from_fn(|i| (words[2 + i] >> 32 & 0xff) as u32),
            interleave: (words[0] >> 8 & 0xff) as u32,
            swizzle,
            fill_nan: words[0] & 1 != 0,
        })
    }

    /// The bits of an element that lies outside: zero, or the NaN that `fma.oob` knows, one pattern of 16 bits whatever the type.
    pub fn fill_element(&self) -> u64 {
        if self.fill_nan { 0x7ff7_7ff7_7ff7_7ff7 } else { 0 }
    }
}

fn check_dimension(i: usize, extent: u64, box_extent: u32, element_stride: u32) -> Result<(), String> {
    if extent == 0 || extent > 1 << 32 {
        return Err(format!("the extent {extent} of dimension {i} is not from 1 to 2^32"));
    }
    if box_extent == 0 || box_extent > 256 {
        return Err(format!("the box extent {box_extent} of dimension {i} is not from 1 to 256"));
    }
    if element_stride == 0 || element_stride > 8 {
        return Err(format!("the element stride {element_stride} of dimension {i} is not from 1 to 8"));
    }
    Ok(())
}

fn checksum(words: &[u64; 16]) -> u64 {
    words[..15].iter().fold(0x9e37_79b9_7f4a_7c15, |sum, &word| (sum ^ word).rotate_left(23).wrapping_mul(0xd134_2543_de82_ef95))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(dims: &[u64], strides: &[u64], boxes: &[u32], swizzle: u32) -> Result<TensorMap, String> {
        TensorMap::new(6, dims.len() as u32, 4096, dims, strides, boxes, &[1; 5], 0, swizzle, 0)
    }

    #[test]
    fn a_map_survives_its_encoding() {
        let map = map(&[128, 77, 3, 2], &[256, 19712, 59136], &[64, 128, 1, 1], 3).unwrap();
        assert_eq!(TensorMap::decode(&map.encode()), Some(map.clone()));
        let mut broken = map.encode();
        broken[4] ^= 1;
        assert_eq!(TensorMap::decode(&broken), None);
    }

    #[test]
    fn wrong_arguments_are_named() {
        assert!(map(&[0, 8], &[256], &[64, 8], 3).unwrap_err().contains("extent 0"));
        assert!(map(&[128, 8], &[250], &[64, 8], 3).unwrap_err().contains("stride 250"));
        assert!(map(&[128, 8], &[256], &[64, 257], 3).unwrap_err().contains("257"));
        assert!(map(&[128, 8], &[256], &[128, 8], 3).unwrap_err().contains("span"));
        assert!(map(&[128, 8], &[128], &[64, 8], 3).unwrap_err().contains("below"));
    }

    #[test]
    fn swizzles_are_their_own_inverse() {
        for swizzle in [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128] {
            for address in 0..2048 {
                assert_eq!(swizzle.apply(swizzle.apply(address)), address);
            }
        }
        assert_eq!(Swizzle::B128.apply(128 + 16), 128);
        assert_eq!(Swizzle::B32.apply(128), 128 + 16);
    }
}
