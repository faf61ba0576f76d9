//! Attention inputs of a real model, with results computed elsewhere; `data/README.md` says whose.

use crate::Failure;
use half::f16;
use safetensors::{SafeTensors, tensor::TensorView};

/// One file.
#[derive(Clone, Debug)]
pub struct Activations {
    /// Its name.
    pub name: &'static str,
    /// `[batch, seqlen, heads, head_dim]`.
    pub shape: [usize; 4],
    /// Queries.
    pub q: Vec<f16>,
    /// Keys.
    pub k: Vec<f16>,
    /// Values.
    pub v: Vec<f16>,
    /// `[batch, seqlen, heads, head_dim]`, computed in f64.
    pub o: Vec<f32>,
    /// `[batch, heads, seqlen]`, computed in f64; natural logarithm.
    pub lse: Vec<f32>,
}

const FILES: [(&str, &[u8]); 3] = [
    ("minilm_layer0", include_bytes!("../data/minilm_layer0.safetensors")),
    ("minilm_layer3", include_bytes!("../data/minilm_layer3.safetensors")),
    ("minilm_short_layer5", include_bytes!("../data/minilm_short_layer5.safetensors")),
];

/// All files.
pub fn all() -> Result<Vec<Activations>, Failure> {
    FILES.into_iter().map(|(name, bytes)| parse(name, bytes).map_err(|failure| failure.during(name))).collect()
}

fn parse(name: &'static str, bytes: &[u8]) -> Result<Activations, Failure> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| Failure(error.to_string()))?;
    let tensor = |name: &str| file.tensor(name).map_err(|error| Failure(format!("{name}: {error}")));
    let shape = tensor("q")?.shape().try_into().map_err(|_| Failure("q is not of four dimensions".to_string()))?;
    Ok(Activations {
        name,
        shape,
        q: elements(&tensor("q")?),
        k: elements(&tensor("k")?),
        v: elements(&tensor("v")?),
        o: elements(&tensor("o")?),
        lse: elements(&tensor("lse")?),
    })
}

fn elements<T: bytemuck::AnyBitPattern>(tensor: &TensorView<'_>) -> Vec<T> {
    // The file's bytes may lie at any address.
    tensor.data().chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopper_attention::Layout;
    use hopper_attention::reference::{HostTensor, Problem, exact};

    #[test]
    fn exact_agrees_with_what_is_stored() {
        for file in all().unwrap() {
            let tensor = |data| HostTensor::new(data, Layout::bshd(file.shape)).unwrap();
            let attention = exact::attention(&Problem::new(tensor(&file.q), tensor(&file.k), tensor(&file.v)).unwrap());
            assert_eq!((attention.o.len(), attention.lse.len()), (file.o.len(), file.lse.len()));
            // Stored as f32, from a softmax_scale in f64.
            let error = |exact: &[f64], stored: &[f32]| {
                exact
                    .iter()
                    .zip(stored)
                    .map(|(exact, &stored)| (exact - f64::from(stored)).abs() / exact.abs().max(1.0))
                    .fold(0.0, f64::max)
            };
            let (o, lse) = (error(&attention.o, &file.o), error(&attention.lse, &file.lse));
            assert!(o < 2e-6 && lse < 2e-7, "{}: {o:e} {lse:e}", file.name);
        }
    }

    #[test]
    fn the_first_layer_is_peaked() {
        let files = all().unwrap();
        let largest = files[0].lse.iter().copied().fold(0.0, f32::max);
        assert!((78.0..80.0).contains(&largest), "{largest}");
        assert_eq!(files[2].shape, [1, 14, 12, 32]);
    }
}
