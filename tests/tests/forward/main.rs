//! What one call computes: lengths, shapes, layouts, values, each against the references.

mod activations;
mod layouts;
mod lengths;
mod nonfinite;
mod shapes;
mod values;

use hopper_attention_kernels::config::{FEWER_ROWS, FORWARD, TileConfig};
use hopper_attention_tests::{DeviceTest, ElementType, native_head_dims, trials};
use std::fmt::Display;
use std::process::ExitCode;

fn main() -> ExitCode {
    trials::run("forward", || {
        let tables = [lengths::tests(), shapes::tests(), layouts::tests(), values::tests(), nonfinite::tests(), activations::tests()];
        tables.into_iter().flatten().collect()
    })
}

/// A kernel of the library: its tiles and its element type.
type Kernel = (TileConfig, ElementType);

/// One test for each kernel of the library, named `<name>::<kernel>`.
fn for_each_kernel<F>(name: &str, body: F) -> Vec<DeviceTest>
where
    F: Fn(Kernel) -> Result<(), hopper_attention_tests::Failure> + Copy + Send + 'static,
{
    let all = FORWARD.into_iter().chain(FEWER_ROWS).flat_map(|config| ElementType::ALL.into_iter().map(move |dtype| (config, dtype)));
    let test = |kernel: Kernel| DeviceTest::new(format!("{name}::{}", kernel_name(kernel)), move || body(kernel));
    all.map(test).collect()
}

fn kernel_name((config, dtype): Kernel) -> String {
    let name = variant_name(native_head_dims(&config), dtype, config.causal);
    if FEWER_ROWS.contains(&config) { format!("{name}_fewer_rows") } else { name }
}

fn variant_name(head_dims: impl Display, dtype: ElementType, causal: bool) -> String {
    format!("hdim{head_dims}_{}_{}", dtype.name(), if causal { "causal" } else { "full" })
}
