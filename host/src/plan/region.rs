//! The bytes that a tensor touches, and whether two sets of bytes meet. Both questions are answered conservatively: "apart" is proved,
//! "meeting" may be a layout whose proof is beyond these rules.

/// Rows of `row_bytes`, repeated along up to three strided dimensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    start: u64,
    row_bytes: u64,
    /// (extent, stride in bytes); a dimension of extent 1 has stride 0.
    dims: [(u64, u64); 3],
    end: u64,
}

impl Region {
    /// `None` if the region is empty, or reaches beyond the address space.
    pub fn new(start: u64, row_bytes: u64, dims: [(u64, u64); 3]) -> Option<Self> {
        if row_bytes == 0 || dims.iter().any(|&(extent, _)| extent == 0) {
            return None;
        }
        let dims = dims.map(|(extent, stride)| if extent == 1 { (1, 0) } else { (extent, stride) });
        let end = window(row_bytes, dims.iter()).and_then(|bytes| start.checked_add(bytes))?;
        Some(Self { start, row_bytes, dims, end })
    }

    /// `bytes` in one piece.
    pub fn contiguous(start: u64, bytes: u64) -> Option<Self> {
        Self::new(start, bytes, [(1, 0); 3])
    }

    /// From the first byte to behind the last.
    pub fn bytes(&self) -> std::ops::Range<u64> {
        self.start..self.end
    }

    /// Strides in bytes, 0 for a dimension of one entry.
    pub fn strides(&self) -> [u64; 3] {
        self.dims.map(|(_, stride)| stride)
    }

    /// Whether no two rows share a byte.
    ///
    /// The rule: with the dimensions sorted by stride, each stride is at least the bytes that the dimensions before it span. Then the
    /// offset of a row is a mixed-radix number with room for every digit, and no two rows meet. Every permutation of contiguous
    /// dimensions passes, with or without gaps; what fails without overlapping is rows interleaved at strides that do not nest.
    pub fn rows_are_disjoint(&self) -> bool {
        let mut dims = self.dims;
        dims.sort_unstable_by_key(|&(_, stride)| stride);
        let mut inner = self.row_bytes;
        for (extent, stride) in dims.into_iter().filter(|&(extent, _)| extent > 1) {
            if stride < inner {
                return false;
            }
            // No overflow: `end` is a sum of the same terms.
            inner += (extent - 1) * stride;
        }
        true
    }

    /// Whether the two provably share no byte.
    ///
    /// Either their ranges lie apart; or there is a period, one of their strides, such that both occupy separate columns of it: the
    /// dimensions whose strides are multiples of the period do not change an address modulo the period, and what the others span
    /// is a window. Two windows that do not meet modulo the period never meet. So slices of a packed QKV are apart.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        if self.end <= other.start || other.end <= self.start {
            return true;
        }
        let strides = self.dims.iter().chain(&other.dims).map(|&(_, stride)| stride);
        strides.filter(|&period| period > 0).any(|period| {
            let (a, b) = (self.window_within(period), other.window_within(period));
            // `b` seen from `a`: it begins behind the end of `a` and ends before `a` begins again.
            let (from, to) = (self.start % period, other.start % period);
            let distance = if to >= from { to - from } else { period - (from - to) };
            a <= distance && b <= period - distance
        })
    }

    /// Bytes spanned by the row and the dimensions whose stride is no multiple of `period`.
    fn window_within(&self, period: u64) -> u64 {
        let inner = self.dims.iter().filter(|&&(_, stride)| !stride.is_multiple_of(period));
        window(self.row_bytes, inner).expect("spans less than the whole region")
    }
}

/// Bytes from the first to behind the last, `None` beyond 2^64.
fn window<'a>(row_bytes: u64, mut dims: impl Iterator<Item = &'a (u64, u64)>) -> Option<u64> {
    dims.try_fold(row_bytes, |sum, &(extent, stride)| sum.checked_add((extent - 1).checked_mul(stride)?))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::tests::draws;
    use super::*;

    impl Region {
        fn addresses(&self) -> Vec<u64> {
            let [a, b, c] = self.dims.map(|(extent, stride)| (0..extent).map(move |i| i * stride));
            let mut all = Vec::new();
            for (a, b, c) in a.flat_map(|a| {
                b.clone().flat_map({
                    let c = c.clone();
                    move |b| c.clone().map(move |c| (a, b, c))
                })
            }) {
                all.extend((0..self.row_bytes).map(|byte| self.start + a + b + c + byte));
            }
            all
        }
    }

    /// Small regions in every relation: the rules must never call overlapping bytes apart.
    #[test]
    fn never_wrongly_disjoint() {
        let mut draw = draws();
        let (mut proved_self, mut proved_pair) = (0, 0);
        for _ in 0..20_000 {
            let mut region = || {
                let unit = [1, 4, 12][draw(3) as usize];
                Region::new(draw(40), 1 + draw(4), [(); 3].map(|()| (1 + draw(3), unit * draw(12)))).unwrap()
            };
            let (a, b) = (region(), region());
            let (bytes_a, bytes_b) = (a.addresses(), b.addresses());
            let set: HashSet<_> = bytes_a.iter().collect();
            if a.rows_are_disjoint() {
                assert_eq!(set.len(), bytes_a.len(), "{a:?}");
                proved_self += 1;
            }
            if a.is_disjoint(&b) {
                assert!(!bytes_b.iter().any(|byte| set.contains(byte)), "{a:?} {b:?}");
                proved_pair += 1;
            }
            assert_eq!(a.is_disjoint(&b), b.is_disjoint(&a), "{a:?} {b:?}");
        }
        assert!(proved_self > 500 && proved_pair > 500, "{proved_self} {proved_pair}");
    }

    #[test]
    fn ends_of_the_address_space() {
        assert!(Region::contiguous(u64::MAX - 1, 2).is_none());
        assert!(Region::contiguous(u64::MAX - 2, 2).is_some());
        assert!(Region::new(0, 2, [(u64::MAX, 2), (1, 0), (1, 0)]).is_none());
        assert!(Region::new(0, 2, [(3, u64::MAX / 2), (1, 0), (1, 0)]).is_none());
        assert!(Region::new(0, 2, [(1, u64::MAX), (1, u64::MAX), (0, 1)]).is_none());
        assert!(Region::new(0, 2, [(1, u64::MAX), (1, u64::MAX), (1, u64::MAX)]).is_some());
    }
}
