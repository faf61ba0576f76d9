//! What is refused of the features, each with the error that names it, before anything is written.

use half::bf16;
use hopper_attention::raw;
use hopper_attention_tests::gpu::Stream;
use hopper_attention_tests::{Case, DeviceTest, ElementType, Failure, Ragged, RaggedProblem, Refusal, Side, Sinks};

pub fn tests() -> Vec<DeviceTest> {
    let test = |refusal: Refusal, packed| DeviceTest::new(format!("refusals::{}", refusal.name), move || refused(&refusal, packed));
    let of_packed = [arrays(), options(), tensors()].into_iter().flatten().map(|refusal| test(refusal, true));
    of_packed.chain(padded().into_iter().map(|refusal| test(refusal, false))).collect()
}

fn shorter(array: &mut Option<raw::Array>) {
    *array = array.map(|array| raw::Array { len: array.len - 1, ..array });
}

fn longer(array: &mut Option<raw::Array>) {
    *array = array.map(|array| raw::Array { len: array.len + 1, ..array });
}

fn moved(array: &mut Option<raw::Array>, bytes: u64) {
    *array = array.map(|array| raw::Array { address: array.address + bytes, ..array });
}

fn null(array: &mut Option<raw::Array>) {
    *array = array.map(|array| raw::Array { address: 0, ..array });
}

fn arrays() -> Vec<Refusal> {
    vec![
        Refusal::invalid("sinks_too_few", "sinks.len", |call| shorter(&mut call.arrays.sinks)),
        Refusal::invalid("sinks_too_many", "sinks.len", |call| longer(&mut call.arrays.sinks)),
        Refusal::invalid("slopes_too_few", "alibi_slopes.len", |call| {
            call.arrays.alibi_slopes = call.arrays.sinks;
            shorter(&mut call.arrays.alibi_slopes);
        }),
        Refusal::invalid("sinks_null", "sinks.address", |call| null(&mut call.arrays.sinks)),
        Refusal::invalid("slopes_null", "alibi_slopes.address", |call| {
            call.arrays.alibi_slopes = call.arrays.sinks;
            null(&mut call.arrays.alibi_slopes);
        }),
        Refusal::invalid("sinks_off_by_two_bytes", "sinks.address", |call| moved(&mut call.arrays.sinks, 2)),
        Refusal::invalid("cu_seqlens_q_null", "cu_seqlens_q.address", |call| null(&mut call.arrays.cu_seqlens_q)),
        Refusal::invalid("cu_seqlens_k_off_by_a_byte", "cu_seqlens_k.address", |call| moved(&mut call.arrays.cu_seqlens_k, 1)),
        Refusal::invalid("seqused_q_off_by_two_bytes", "seqused_q.address", |call| moved(&mut call.arrays.seqused_q, 2)),
        Refusal::invalid("seqused_k_null", "seqused_k.address", |call| null(&mut call.arrays.seqused_k)),
        Refusal::invalid("cu_seqlens_q_of_nothing", "cu_seqlens_q.len", |call| {
            call.arrays.cu_seqlens_q = call.arrays.cu_seqlens_q.map(|array| raw::Array { len: 0, ..array });
        }),
        Refusal::invalid("cu_seqlens_k_too_short", "cu_seqlens_k.len", |call| shorter(&mut call.arrays.cu_seqlens_k)),
        Refusal::invalid("seqused_q_too_long", "seqused_q.len", |call| longer(&mut call.arrays.seqused_q)),
        Refusal::invalid("seqused_k_too_short", "seqused_k.len", |call| shorter(&mut call.arrays.seqused_k)),
        Refusal::invalid("lse_over_cu_seqlens", "lse", |call| {
            let address = call.arrays.cu_seqlens_q.map_or(0, |array| array.address);
            call.lse = call.lse.map(|lse| raw::Lse { address, ..lse });
        }),
        Refusal::invalid("lse_over_sinks", "lse", |call| {
            let address = call.arrays.sinks.map_or(0, |array| array.address);
            call.lse = call.lse.map(|lse| raw::Lse { address, ..lse });
        }),
        Refusal::invalid("sinks_in_host_memory", "sinks.address", |call| {
            static HOST: [f32; 4] = [0.0; 4];
            call.options.check_addresses = true;
            call.arrays.sinks = call.arrays.sinks.map(|array| raw::Array { address: HOST.as_ptr().addr() as u64, ..array });
        }),
    ]
}

fn options() -> Vec<Refusal> {
    vec![
        Refusal::invalid("softcap_of_0", "softcap", |call| call.options.softcap = Some(0.0)),
        Refusal::invalid("softcap_below_0", "softcap", |call| call.options.softcap = Some(-30.0)),
        Refusal::invalid("softcap_of_nan", "softcap", |call| call.options.softcap = Some(f32::NAN)),
        Refusal::invalid("softcap_of_infinity", "softcap", |call| call.options.softcap = Some(f32::INFINITY)),
        Refusal::invalid("softcap_too_large", "softcap", |call| call.options.softcap = Some(f32::MAX)),
        Refusal::invalid("softcap_subnormal", "softcap", |call| call.options.softcap = Some(1e-40)),
        Refusal::unsupported("softcap_and_slopes", "softcap", |call| {
            call.options.softcap = Some(30.0);
            call.arrays.alibi_slopes = call.arrays.sinks;
        }),
    ]
}

fn tensors() -> Vec<Refusal> {
    vec![
        Refusal::invalid("packed_queries_in_two_entries", "q.batch", |call| {
            call.q.layout.shape[0] = 2;
            call.o.layout.shape[0] = 2;
        }),
        Refusal::invalid("packed_keys_in_two_entries", "k.batch", |call| {
            call.k.layout.shape[0] = 2;
            call.v.layout.shape[0] = 2;
        }),
        Refusal::invalid("packed_lse_too_short", "lse.len", |call| call.lse = call.lse.map(|lse| raw::Lse { len: lse.len - 1, ..lse })),
        Refusal::invalid("output_with_the_head_dim_of_queries", "o.head_dim", |call| call.o.layout.shape[3] = 64),
        Refusal::unsupported("head_dim_v_of_60", "v.head_dim", |call| {
            call.v.layout.shape[3] = 60;
            call.o.layout.shape[3] = 60;
        }),
        Refusal::unsupported("head_dim_v_of_264", "v.head_dim", |call| {
            call.v.layout.shape[3] = 264;
            call.o.layout.shape[3] = 264;
        }),
    ]
}

/// Of padded sequences.
fn padded() -> Vec<Refusal> {
    vec![
        Refusal::invalid("seqused_too_short_for_a_padded_batch", "seqused_k.len", |call| shorter(&mut call.arrays.seqused_k)),
        Refusal::invalid("batches_differ", "k.batch", |call| {
            call.k.layout.shape[0] -= 1;
            call.v.layout.shape[0] -= 1;
        }),
        Refusal::unsupported("queries_apart_by_no_whole_rows", "q.batch_stride", |call| call.q.layout.strides[0] += 8),
        Refusal::unsupported("keys_apart_by_no_whole_rows", "k.batch_stride", |call| call.k.layout.strides[0] += 8),
        Refusal::unsupported("values_apart_by_no_whole_rows", "v.batch_stride", |call| call.v.layout.strides[0] += 8),
        Refusal::unsupported("outputs_apart_by_no_whole_rows", "o.batch_stride", |call| call.o.layout.strides[0] += 8),
        Refusal::unsupported("keys_too_far_apart", "k.layout", |call| call.k.layout.strides[0] = call.k.layout.strides[1] << 30),
    ]
}

fn refused(refusal: &Refusal, packed: bool) -> Result<(), Failure> {
    let case = Case::new(ElementType::Bf16, 64, 0, 0).heads(1, 4, 2).head_dim_v(72).causal(true).sinks(Sinks::Drawn(1));
    let side = Side { packed, spare: 2, margin: 1, capacity: 0 };
    let ragged = Ragged::new(case, &[(20, 30), (0, 7), (66, 65)]).sides(side, side);
    let (problem, stream) = (RaggedProblem::<bf16>::new(&ragged, ragged.draw())?, Stream::new()?);
    refusal.check(problem.call, &stream)?;
    problem.check_untouched()?;
    // The refusal leaves nothing behind: the right call works.
    problem.run_and_judge(&stream)
}
