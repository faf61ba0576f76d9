//! Which tiles of keys a tile of query rows visits under a window. Producer and consumer compute it from the same bounds, so that they agree.
//!
//! The window is aligned to the bottom right: with `diagonal = i + seqlen_k - seqlen_q`, query `i` sees key `j` iff
//! `diagonal - window_left <= j <= diagonal + window_right`. Where rows see nothing, the tile of such rows visits no key tile.

use crate::block_range::{BlockRange, div_ceil, min};

/// The key tiles of one row tile: `begin..end`, of which `unmasked_begin..unmasked_end` need no mask at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// First key tile to visit.
    pub begin: u32,
    /// Behind the last; equal to `begin` if there is none.
    pub end: u32,
    /// First key tile that every row of the tile sees entirely.
    pub unmasked_begin: u32,
    /// Behind the last of them. `begin <= unmasked_begin <= unmasked_end <= end`.
    pub unmasked_end: u32,
    /// No row sees this key or one behind it. It lies in tile `end - 1`, behind its first key, or right behind that tile; 0 if there is no tile.
    pub keys_end: u32,
}

impl From<BlockRange> for KeyRange {
    #[inline(always)]
    fn from(range: BlockRange) -> Self {
        Self { begin: 0, end: range.n_block_max, unmasked_begin: 0, unmasked_end: range.n_block_unmasked, keys_end: range.keys_end }
    }
}

/// What some queries see of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyBounds {
    /// None of them sees a key before this one.
    pub begin: u32,
    /// Nor this one, or one behind it.
    pub end: u32,
    /// Each of them sees this key and those behind it,
    pub whole_begin: u32,
    /// before this one; there may be none.
    pub whole_end: u32,
}

impl KeyBounds {
    /// Nothing is known: each key may be seen, or not.
    pub const UNKNOWN: Self = Self { begin: 0, end: u32::MAX, whole_begin: 0, whole_end: 0 };

    /// What is seen under both.
    #[inline(always)]
    pub const fn and(self, other: Self) -> Self {
        let (begin, end) = (max(self.begin, other.begin), min(self.end, other.end));
        let (whole_begin, whole_end) = (max(self.whole_begin, other.whole_begin), min(self.whole_end, other.whole_end));
        // Within what is seen at all, whatever the two say: numbers near the largest would wrap round when they are divided.
        Self { begin, end, whole_begin: min(max(whole_begin, begin), end), whole_end: min(whole_end, end) }
    }

    /// The tiles of `tile_n` keys that are visited, and those that need no mask.
    #[inline(always)]
    pub const fn tiles(self, tile_n: u32) -> KeyRange {
        if self.begin >= self.end {
            return KeyRange::EMPTY;
        }
        let (begin, end) = (self.begin / tile_n, div_ceil(self.end, tile_n));
        let unmasked_end = max(self.whole_end / tile_n, begin);
        let unmasked_begin = min(div_ceil(self.whole_begin, tile_n), unmasked_end);
        KeyRange { begin, end, unmasked_begin, unmasked_end, keys_end: self.end }
    }
}

impl KeyRange {
    /// No key tile.
    pub const EMPTY: Self = Self { begin: 0, end: 0, unmasked_begin: 0, unmasked_end: 0, keys_end: 0 };

    /// Those that `other` visits as well.
    #[inline(always)]
    pub const fn within(self, other: Self) -> Self {
        let (begin, end) = (max(self.begin, other.begin), min(self.end, other.end));
        if begin >= end { Self::EMPTY } else { Self { begin, end, ..self } }
    }
}

/// How far a query sees from its diagonal; [`crate::params::MAX_SEQLEN`] hides nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// To earlier keys.
    pub left: u32,
    /// To later keys.
    pub right: u32,
}

impl Window {
    /// The keys that query `row` sees: from the first number on, and before the second; none if that is no larger.
    #[inline(always)]
    pub const fn keys(&self, row: u32, seqlen_q: u32, seqlen_k: u32) -> (u32, u32) {
        let diagonal = row as i64 + seqlen_k as i64 - seqlen_q as i64;
        (clamp(diagonal - self.left as i64, seqlen_k), clamp(diagonal + self.right as i64 + 1, seqlen_k))
    }

    /// What the queries from `first_row` to `last_row` see. Both bounds rise with the row: the first row sees the earliest keys, the last one the
    /// latest.
    #[inline(always)]
    pub const fn bounds(&self, first_row: u32, last_row: u32, seqlen_q: u32, seqlen_k: u32) -> KeyBounds {
        let (begin, whole_end) = self.keys(first_row, seqlen_q, seqlen_k);
        let (whole_begin, end) = self.keys(last_row, seqlen_q, seqlen_k);
        KeyBounds { begin, end, whole_begin, whole_end }
    }
}

/// The key tiles that rows `first_row..first_row + tile_m` visit, as far as there are such rows: none if `first_row >= seqlen_q`. Lengths and
/// the window's two sides are at most [`crate::params::MAX_SEQLEN`].
#[inline(always)]
pub const fn key_range(window: Window, tile_m: u32, tile_n: u32, first_row: u32, seqlen_q: u32, seqlen_k: u32) -> KeyRange {
    if first_row >= seqlen_q {
        return KeyRange::EMPTY;
    }
    window.bounds(first_row, min(first_row + tile_m, seqlen_q) - 1, seqlen_q, seqlen_k).tiles(tile_n)
}

#[inline(always)]
const fn max(a: u32, b: u32) -> u32 {
    if a > b { a } else { b }
}

#[inline(always)]
const fn clamp(keys: i64, seqlen_k: u32) -> u32 {
    if keys < 0 {
        0
    } else if keys > seqlen_k as i64 {
        seqlen_k
    } else {
        keys as u32
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::block_range::block_range;
    use crate::params::MAX_SEQLEN;
    use std::vec::Vec;

    /// Whether `row` sees `key`, by definition.
    fn sees(window: Window, row: u32, key: u32, seqlen_q: u32, seqlen_k: u32) -> bool {
        let distance = key as i64 - (row as i64 + seqlen_k as i64 - seqlen_q as i64);
        (-(window.left as i64)..=window.right as i64).contains(&distance)
    }

    fn cases() -> impl Iterator<Item = (Window, u32, u32, u32, u32, u32)> {
        const LENGTHS: [u32; 9] = [0, 1, 2, 7, 8, 9, 16, 17, 33];
        const SIDES: [u32; 7] = [0, 1, 5, 8, 13, 40, MAX_SEQLEN];
        let windows = SIDES.into_iter().flat_map(|left| SIDES.map(|right| Window { left, right }));
        windows.flat_map(|window| {
            [(8, 8), (12, 8), (8, 5)].into_iter().flat_map(move |(tile_m, tile_n)| {
                LENGTHS.into_iter().skip(1).flat_map(move |seqlen_q| {
                    LENGTHS.into_iter().flat_map(move |seqlen_k| {
                        (0..seqlen_q + tile_m).step_by(tile_m as usize).map(move |row| (window, tile_m, tile_n, row, seqlen_q, seqlen_k))
                    })
                })
            })
        })
    }

    #[test]
    fn visits_what_is_seen_and_masks_what_is_hidden() {
        for (window, tile_m, tile_n, first_row, seqlen_q, seqlen_k) in cases() {
            let case = (window, tile_m, tile_n, first_row, seqlen_q, seqlen_k);
            let got = key_range(window, tile_m, tile_n, first_row, seqlen_q, seqlen_k);
            let rows: Vec<_> = (first_row..(first_row + tile_m).min(seqlen_q)).collect();
            let keys = |tile: u32| tile * tile_n..(tile + 1) * tile_n;
            let visible = |key| key < seqlen_k && rows.iter().any(|&row| sees(window, row, key, seqlen_q, seqlen_k));
            let seen: Vec<_> = (0..seqlen_k.div_ceil(tile_n)).filter(|&tile| keys(tile).any(visible)).collect();
            assert_eq!((got.begin..got.end).collect::<Vec<_>>(), seen, "{case:?}");
            assert_eq!(got.keys_end, (0..seqlen_k).rfind(|&key| visible(key)).map_or(0, |key| key + 1), "{case:?}");
            assert!(got.begin <= got.unmasked_begin && got.unmasked_begin <= got.unmasked_end && got.unmasked_end <= got.end, "{case:?}");
            for tile in got.begin..got.end {
                let whole = keys(tile).all(|key| key < seqlen_k && rows.iter().all(|&row| sees(window, row, key, seqlen_q, seqlen_k)));
                assert_eq!((got.unmasked_begin..got.unmasked_end).contains(&tile), whole, "tile {tile} of {case:?}");
            }
        }
    }

    #[test]
    fn open_windows_are_the_plain_masks() {
        for (window, tile_m, tile_n, first_row, seqlen_q, seqlen_k) in cases() {
            let open = Window { left: MAX_SEQLEN, ..window };
            if window.right == 0 || window.right == MAX_SEQLEN {
                let plain = block_range(window.right == 0, tile_m, tile_n, first_row, seqlen_q, seqlen_k);
                let got = key_range(open, tile_m, tile_n, first_row, seqlen_q, seqlen_k);
                assert_eq!(got, KeyRange::from(plain), "{:?}", (open, tile_m, tile_n, first_row, seqlen_q, seqlen_k));
            }
        }
    }

    #[test]
    fn bounds_of_two_masks() {
        // Whatever a mask function says of 200 keys, tiles are those of the sequence, and none is whole that is not so under both.
        let window = KeyBounds { begin: 10, end: 200, whole_begin: 40, whole_end: 180 };
        const NUMBERS: [u32; 10] = [0, 1, 31, 40, 64, 180, 200, 1000, u32::MAX - 1, u32::MAX];
        for (begin, end) in NUMBERS.into_iter().flat_map(|begin| NUMBERS.map(|end| (begin, end))) {
            for (whole_begin, whole_end) in NUMBERS.into_iter().flat_map(|begin| NUMBERS.map(|end| (begin, end))) {
                let mask = KeyBounds { begin, end, whole_begin, whole_end };
                let tiles = window.and(mask).tiles(32);
                assert_eq!(window.and(mask), mask.and(window));
                let seen = |key: u32| (10..200).contains(&key) && (begin..end).contains(&key);
                let whole = |key: u32| (40..180).contains(&key) && (whole_begin..whole_end).contains(&key);
                for tile in 0..10 {
                    let keys = || 32 * tile..32 * tile + 32;
                    assert_eq!((tiles.begin..tiles.end).contains(&tile), keys().any(seen), "tile {tile} of {mask:?}");
                    // What no query sees cannot be seen by all of them; a bound that says both is taken at its narrower word.
                    let expected = keys().all(|key| whole(key) && seen(key));
                    assert_eq!((tiles.unmasked_begin..tiles.unmasked_end).contains(&tile), expected, "tile {tile} of {mask:?}");
                }
                assert_eq!(tiles.keys_end, (0..200).rfind(|&key| seen(key)).map_or(0, |key| key + 1), "{mask:?}");
                assert!(
                    tiles.begin <= tiles.unmasked_begin && tiles.unmasked_begin <= tiles.unmasked_end && tiles.unmasked_end <= tiles.end
                );
            }
        }
    }

    #[test]
    fn largest_lengths() {
        let window = Window { left: MAX_SEQLEN, right: 0 };
        let range = key_range(window, 128, 128, MAX_SEQLEN / 128 * 128, MAX_SEQLEN, MAX_SEQLEN);
        assert_eq!((range.begin, range.end), (0, MAX_SEQLEN.div_ceil(128)));
        assert_eq!(window.keys(0, MAX_SEQLEN, 0), (0, 0));
    }
}
