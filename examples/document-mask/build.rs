//! Builds the kernels' PTX into OUT_DIR.

use std::env;
use std::error::Error;
use std::path::Path;

use hopper_attention_builder::Builder;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=kernels");
    let built = Builder::new("kernels").build()?;
    if let Some(warning) = built.warning() {
        println!("cargo::warning={warning}");
    }
    built.write(Path::new(&env::var("OUT_DIR")?).join("ptx"))?;
    Ok(())
}
