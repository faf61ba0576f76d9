//! `emulator bench`

use std::time::Instant;

use hopper_attention_emulator::harness::{Link, Spec, run_once};

/// A loop of ordinary instructions over all lanes: what the interpreter itself costs.
const ARITHMETIC: &str = "// launch: grid 1 block 128
// arg: out u32[128] = 200000
.version 8.3
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 k_param_0)
{
    .reg .pred p;
    .reg .b32 %r<8>;
    .reg .b64 %rd<3>;
    .reg .f32 %f<4>;
    mov.u32 %r0, %tid.x;
    ld.param.u64 %rd0, [k_param_0];
    mad.wide.u32 %rd1, %r0, 4, %rd0;
    mov.b32 %r1, 0;
    mov.f32 %f0, 0f00000000;
LOOP:
    fma.rn.f32 %f1, %f0, 0f3f000000, 0f3f800000;
    max.f32 %f0, %f0, %f1;
    and.b32 %r2, %r1, 7;
    xor.b32 %r3, %r2, %r0;
    add.u32 %r1, %r1, 1;
    setp.lt.u32 p, %r1, 200000;
    @p bra LOOP;
    st.global.u32 [%rd1], %r1;
    ret;
}
";
/// Instructions of one thread: the loop's seven, and what stands around it.
const INSTRUCTIONS: f64 = 7.0 * 200_000.0 + 6.0;

/// Prints thread-instructions a second, with the checks off and on.
pub fn run() -> Result<(), String> {
    let link = Link::emulator();
    let spec = Spec::parse(ARITHMETIC)?;
    for checks in [false, true] {
        link.set_checks(checks);
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            let started = Instant::now();
            run_once(&link, ARITHMETIC, &spec)?;
            best = best.min(started.elapsed().as_secs_f64());
        }
        let rate = INSTRUCTIONS * 128.0 / best / 1e6;
        println!("arithmetic, one CTA, checks {}: {rate:.0} million thread-instructions a second", if checks { "on " } else { "off" });
    }
    println!("of a program: set HOPPER_EMULATOR_TRACE=1, and every launch prints its warp instructions and seconds");
    Ok(())
}
