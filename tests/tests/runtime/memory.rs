//! Device memory that the library takes for itself.

use half::bf16;
use hopper_attention::{DType, raw};
use hopper_attention_kernels::config::FORWARD;
use hopper_attention_tests::gpu::{Stream, free_bytes};
use hopper_attention_tests::{Case, DeviceProblem, DeviceTest, ElementType, Failure, Inputs, Values, ensure, native_head_dims};

pub fn tests() -> Vec<DeviceTest> {
    vec![
        DeviceTest::on_hardware("memory::nothing_after_the_first_use", nothing_after_the_first_use),
        DeviceTest::on_hardware("memory::loaded_kernels_are_small", loaded_kernels_are_small),
    ]
}

/// What the driver calls free before and after calls of every length, the first use of the kernel aside: not a byte less.
fn nothing_after_the_first_use() -> Result<(), Failure> {
    for causal in [false, true] {
        let case = |seqlen| Case::new(ElementType::Bf16, 128, seqlen, seqlen).causal(causal).heads(1, 2, 1).values(Values::Uniform);
        let stream = Stream::new()?;
        DeviceProblem::<bf16>::new(&case(300), &Inputs::draw(&case(300)))?.run(&stream)?;
        for seqlen in [1000, 40_000, 200_000] {
            let problem = DeviceProblem::<bf16>::new(&case(seqlen), &Inputs::draw(&case(seqlen)))?;
            let before = free_bytes()?;
            for _ in 0..3 {
                problem.enqueue(&stream)?;
            }
            stream.wait(|| case(seqlen).text())?;
            let after = free_bytes()?;
            ensure!(before == after, "{seqlen} tokens took {} bytes of device memory", before as i64 - after as i64);
        }
    }
    Ok(())
}

/// Loads every plain kernel that is not loaded yet, and the general ones beside them. The driver counts in steps of 2 MiB, and the kernels' code is part of it.
fn loaded_kernels_are_small() -> Result<(), Failure> {
    let before = free_bytes()?;
    for config in FORWARD {
        for dtype in [DType::F16, DType::Bf16] {
            raw::prepare(native_head_dims(&config), dtype, &raw::Options::new().causal(config.causal))?;
        }
    }
    let taken = before as i64 - free_bytes()? as i64;
    println!("    loading the kernels that were not loaded took {} KiB of device memory, code included", taken >> 10);
    ensure!(taken <= 32 << 20, "loading kernels took {taken} bytes of device memory");
    Ok(())
}
