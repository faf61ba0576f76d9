//! Random normal values, the same for the same seed on any number of threads.

use hopper_attention::Element;
use rayon::prelude::*;

const CHUNK: usize = 1 << 16;

/// `len` values of mean 0 and variance 1.
pub fn normal<T: Element>(len: usize, seed: u64) -> Vec<T> {
    let mut values = vec![T::from_f32(0.0); len];
    values.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, values)| {
        let mut state = mix(seed ^ mix(chunk as u64));
        for pair in values.chunks_mut(2) {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            for (value, normal) in pair.iter_mut().zip(box_muller(mix(state))) {
                *value = T::from_f32(normal);
            }
        }
    });
    values
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Two independent normal values from 64 random bits.
fn box_muller(bits: u64) -> [f32; 2] {
    let radius = (-2.0 * (((bits >> 40) + 1) as f32 / (1u32 << 24) as f32).ln()).sqrt();
    let angle = std::f32::consts::TAU * (bits & 0xff_ffff) as f32 / (1u32 << 24) as f32;
    [radius * angle.cos(), radius * angle.sin()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_of_a_normal_distribution() {
        let values = normal::<half::f16>(1 << 20, 7);
        let values: Vec<f64> = values.into_iter().map(f64::from).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let moment = |power| values.iter().map(|x| (x - mean).powi(power)).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 5e-3 && (moment(2) - 1.0).abs() < 1e-2 && (moment(4) - 3.0).abs() < 5e-2);
        assert_ne!(normal::<half::f16>(64, 1), normal::<half::f16>(64, 2));
    }
}
