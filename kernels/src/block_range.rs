//! Which tiles of keys a tile of query rows visits. Producer and consumer both call this, so that they agree.
//!
//! The causal mask is aligned to the bottom right: query i sees key j iff `j <= i + seqlen_k - seqlen_q`. All arithmetic is signed: with
//! more queries than keys the first rows see nothing, and a tile of such rows visits no key tile.

/// The key tiles of one row tile: `0..n_block_max`, of which `0..n_block_unmasked` need no mask at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// Behind the last key that any row of the tile sees.
    pub keys_end: u32,
    /// Key tiles to visit.
    pub n_block_max: u32,
    /// Leading key tiles that every row of the tile sees entirely.
    pub n_block_unmasked: u32,
}

/// The key tiles that rows `first_row..first_row + tile_m` visit, as far as there are such rows: none if `first_row >= seqlen_q`. Lengths
/// are at most [`crate::params::MAX_SEQLEN`].
#[inline(always)]
pub const fn block_range(causal: bool, tile_m: u32, tile_n: u32, first_row: u32, seqlen_q: u32, seqlen_k: u32) -> BlockRange {
    if first_row >= seqlen_q {
        return BlockRange { keys_end: 0, n_block_max: 0, n_block_unmasked: 0 };
    }
    // Keys that the last row of the tile sees, and the first; the others lie between.
    let (seen_by_last, seen_by_first) = if causal {
        let offset = seqlen_k as i32 - seqlen_q as i32;
        let last_row = min(first_row + tile_m, seqlen_q) as i32 - 1;
        (clamp(last_row + 1 + offset, seqlen_k), clamp(first_row as i32 + 1 + offset, seqlen_k))
    } else {
        (seqlen_k, seqlen_k)
    };
    BlockRange { keys_end: seen_by_last, n_block_max: div_ceil(seen_by_last, tile_n), n_block_unmasked: seen_by_first / tile_n }
}

#[inline(always)]
pub(crate) const fn min(a: u32, b: u32) -> u32 {
    if a < b { a } else { b }
}

#[inline(always)]
const fn clamp(keys: i32, seqlen_k: u32) -> u32 {
    if keys < 0 { 0 } else { min(keys as u32, seqlen_k) }
}

#[inline(always)]
#[allow(clippy::manual_div_ceil)] // A shift for a constant power of two, where `u32::div_ceil` has a remainder to look at.
pub(crate) const fn div_ceil(a: u32, b: u32) -> u32 {
    (a + b - 1) / b
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts visibility key by key.
    fn by_definition(causal: bool, tile_m: u32, tile_n: u32, first_row: u32, seqlen_q: u32, seqlen_k: u32) -> BlockRange {
        let sees = |row: u32, key: u32| key < seqlen_k && (!causal || key as i64 <= row as i64 + seqlen_k as i64 - seqlen_q as i64);
        let rows = || first_row..(first_row + tile_m).min(seqlen_q);
        let tiles = seqlen_k.div_ceil(tile_n);
        let keys = |tile: u32| tile * tile_n..(tile + 1) * tile_n;
        let n_block_max = (0..tiles).filter(|&tile| keys(tile).any(|key| rows().any(|row| sees(row, key)))).count() as u32;
        let n_block_unmasked = (0..n_block_max).take_while(|&tile| keys(tile).all(|key| rows().all(|row| sees(row, key)))).count() as u32;
        let keys_end = (0..seqlen_k).rfind(|&key| rows().any(|row| sees(row, key))).map_or(0, |key| key + 1);
        BlockRange { keys_end, n_block_max, n_block_unmasked }
    }

    #[test]
    fn agrees_with_the_definition() {
        let lengths = [0, 1, 2, 5, 7, 8, 9, 15, 16, 17, 31, 33];
        for causal in [false, true] {
            for (tile_m, tile_n) in [(8, 8), (12, 8), (8, 5)] {
                for seqlen_q in lengths.into_iter().filter(|&length| length > 0) {
                    for seqlen_k in lengths {
                        for first_row in (0..seqlen_q + tile_m).step_by(tile_m as usize) {
                            let arguments = (causal, tile_m, tile_n, first_row, seqlen_q, seqlen_k);
                            let got = block_range(causal, tile_m, tile_n, first_row, seqlen_q, seqlen_k);
                            assert_eq!(got, by_definition(causal, tile_m, tile_n, first_row, seqlen_q, seqlen_k), "{arguments:?}");
                        }
                    }
                }
            }
        }
    }
}
