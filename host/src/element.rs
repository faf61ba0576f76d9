//! Elements as Rust types.

use crate::DType;

/// An element of Q, K, V and O: [`half::f16`] or [`half::bf16`] of half 2. Sealed.
pub trait Element: bytemuck::Pod + Send + Sync + sealed::Sealed {
    /// Which of the kernels' types this is.
    const DTYPE: DType;
    /// The nearest value of this type, ties to even.
    fn from_f32(value: f32) -> Self;
    /// This value, exactly.
    fn to_f32(self) -> f32;
    /// Writes `source` to `target`, exactly.
    ///
    /// # Panics
    ///
    /// If their lengths differ.
    fn widen(source: &[Self], target: &mut [f32]);
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! element {
    ($element:ty, $dtype:expr) => {
        impl sealed::Sealed for $element {}

        impl Element for $element {
            const DTYPE: DType = $dtype;

            fn from_f32(value: f32) -> Self {
                Self::from_f32(value)
            }

            fn to_f32(self) -> f32 {
                self.to_f32()
            }

            fn widen(source: &[Self], target: &mut [f32]) {
                half::slice::HalfFloatSliceExt::convert_to_f32_slice(source, target);
            }
        }
    };
}

element!(half::f16, DType::F16);
element!(half::bf16, DType::Bf16);
