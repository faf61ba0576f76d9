//! What is refused of the features, each with the error that names it, before anything is written.

use half::bf16;
use hopper_attention::{Error, raw};
use hopper_attention_tests::gpu::Stream;
use hopper_attention_tests::{Case, DeviceTest, ElementType, Failure, Ragged, RaggedProblem, Side, Sinks, ensure};

pub fn tests() -> Vec<DeviceTest> {
    refusals().into_iter().map(|refusal| DeviceTest::new(format!("refusals::{}", refusal.name), move || refused(&refusal))).collect()
}

/// The arguments of a call, to be spoiled.
#[derive(Clone, Copy)]
struct Call {
    q: raw::Tensor4,
    k: raw::Tensor4,
    v: raw::Tensor4,
    o: raw::Tensor4,
    lse: Option<raw::Lse>,
    options: raw::Options,
    arrays: raw::Arrays,
}

struct Refusal {
    name: &'static str,
    /// The field that the error must name.
    field: &'static str,
    /// Whether another implementation could do it: `Unsupported` instead of `Invalid`.
    unsupported: bool,
    /// Whether the right call has packed sequences; they are padded otherwise.
    packed: bool,
    spoil: fn(&mut Call),
}

fn invalid(name: &'static str, field: &'static str, spoil: fn(&mut Call)) -> Refusal {
    Refusal { name, field, unsupported: false, packed: true, spoil }
}

fn unsupported(name: &'static str, field: &'static str, spoil: fn(&mut Call)) -> Refusal {
    Refusal { unsupported: true, ..invalid(name, field, spoil) }
}

fn padded(refusal: Refusal) -> Refusal {
    Refusal { packed: false, ..refusal }
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

fn refusals() -> Vec<Refusal> {
    let mut all = arrays();
    all.extend(options());
    all.extend(tensors());
    all
}

fn arrays() -> Vec<Refusal> {
    vec![
        invalid("sinks_too_few", "sinks.len", |call| shorter(&mut call.arrays.sinks)),
        invalid("sinks_too_many", "sinks.len", |call| longer(&mut call.arrays.sinks)),
        invalid("slopes_too_few", "alibi_slopes.len", |call| {
            call.arrays.alibi_slopes = call.arrays.sinks;
            shorter(&mut call.arrays.alibi_slopes);
        }),
        invalid("sinks_null", "sinks.address", |call| null(&mut call.arrays.sinks)),
        invalid("slopes_null", "alibi_slopes.address", |call| {
            call.arrays.alibi_slopes = call.arrays.sinks;
            null(&mut call.arrays.alibi_slopes);
        }),
        invalid("sinks_off_by_two_bytes", "sinks.address", |call| moved(&mut call.arrays.sinks, 2)),
        invalid("cu_seqlens_q_null", "cu_seqlens_q.address", |call| null(&mut call.arrays.cu_seqlens_q)),
        invalid("cu_seqlens_k_off_by_a_byte", "cu_seqlens_k.address", |call| moved(&mut call.arrays.cu_seqlens_k, 1)),
        invalid("seqused_q_off_by_two_bytes", "seqused_q.address", |call| moved(&mut call.arrays.seqused_q, 2)),
        invalid("seqused_k_null", "seqused_k.address", |call| null(&mut call.arrays.seqused_k)),
        invalid("cu_seqlens_q_of_nothing", "cu_seqlens_q.len", |call| {
            call.arrays.cu_seqlens_q = call.arrays.cu_seqlens_q.map(|array| raw::Array { len: 0, ..array });
        }),
        invalid("cu_seqlens_k_too_short", "cu_seqlens_k.len", |call| shorter(&mut call.arrays.cu_seqlens_k)),
        invalid("seqused_q_too_long", "seqused_q.len", |call| longer(&mut call.arrays.seqused_q)),
        invalid("seqused_k_too_short", "seqused_k.len", |call| shorter(&mut call.arrays.seqused_k)),
        padded(invalid("seqused_too_short_for_a_padded_batch", "seqused_k.len", |call| shorter(&mut call.arrays.seqused_k))),
        padded(invalid("batches_differ", "k.batch", |call| {
            call.k.layout.shape[0] -= 1;
            call.v.layout.shape[0] -= 1;
        })),
        invalid("lse_over_cu_seqlens", "lse", |call| {
            let address = call.arrays.cu_seqlens_q.map_or(0, |array| array.address);
            call.lse = call.lse.map(|lse| raw::Lse { address, ..lse });
        }),
        invalid("lse_over_sinks", "lse", |call| {
            let address = call.arrays.sinks.map_or(0, |array| array.address);
            call.lse = call.lse.map(|lse| raw::Lse { address, ..lse });
        }),
        invalid("sinks_in_host_memory", "sinks.address", |call| {
            static HOST: [f32; 4] = [0.0; 4];
            call.options.check_addresses = true;
            call.arrays.sinks = call.arrays.sinks.map(|array| raw::Array { address: HOST.as_ptr().addr() as u64, ..array });
        }),
    ]
}

fn options() -> Vec<Refusal> {
    vec![
        invalid("softcap_of_0", "softcap", |call| call.options.softcap = Some(0.0)),
        invalid("softcap_below_0", "softcap", |call| call.options.softcap = Some(-30.0)),
        invalid("softcap_of_nan", "softcap", |call| call.options.softcap = Some(f32::NAN)),
        invalid("softcap_of_infinity", "softcap", |call| call.options.softcap = Some(f32::INFINITY)),
        invalid("softcap_too_large", "softcap", |call| call.options.softcap = Some(f32::MAX)),
        invalid("softcap_subnormal", "softcap", |call| call.options.softcap = Some(1e-40)),
        unsupported("softcap_and_slopes", "softcap", |call| {
            call.options.softcap = Some(30.0);
            call.arrays.alibi_slopes = call.arrays.sinks;
        }),
    ]
}

fn tensors() -> Vec<Refusal> {
    vec![
        invalid("packed_queries_in_two_entries", "q.batch", |call| {
            call.q.layout.shape[0] = 2;
            call.o.layout.shape[0] = 2;
        }),
        invalid("packed_keys_in_two_entries", "k.batch", |call| {
            call.k.layout.shape[0] = 2;
            call.v.layout.shape[0] = 2;
        }),
        invalid("packed_lse_too_short", "lse.len", |call| call.lse = call.lse.map(|lse| raw::Lse { len: lse.len - 1, ..lse })),
        invalid("output_with_the_head_dim_of_queries", "o.head_dim", |call| call.o.layout.shape[3] = 64),
        unsupported("head_dim_v_of_60", "v.head_dim", |call| {
            call.v.layout.shape[3] = 60;
            call.o.layout.shape[3] = 60;
        }),
        unsupported("head_dim_v_of_264", "v.head_dim", |call| {
            call.v.layout.shape[3] = 264;
            call.o.layout.shape[3] = 264;
        }),
        padded(unsupported("queries_apart_by_no_whole_rows", "q.batch_stride", |call| call.q.layout.strides[0] += 8)),
        padded(unsupported("keys_apart_by_no_whole_rows", "k.batch_stride", |call| call.k.layout.strides[0] += 8)),
        padded(unsupported("values_apart_by_no_whole_rows", "v.batch_stride", |call| call.v.layout.strides[0] += 8)),
        padded(unsupported("outputs_apart_by_no_whole_rows", "o.batch_stride", |call| call.o.layout.strides[0] += 8)),
        padded(unsupported("keys_too_far_apart", "k.layout", |call| call.k.layout.strides[0] = call.k.layout.strides[1] << 30)),
    ]
}

fn refused(refusal: &Refusal) -> Result<(), Failure> {
    let case = Case::new(ElementType::Bf16, 64, 0, 0).heads(1, 4, 2).head_dim_v(72).causal(true).sinks(Sinks::Drawn(1));
    let side = Side { packed: refusal.packed, spare: 2, margin: 1, capacity: 0 };
    let ragged = Ragged::new(case, &[(20, 30), (0, 7), (66, 65)]).sides(side, side);
    let (problem, stream) = (RaggedProblem::<bf16>::new(&ragged, ragged.draw())?, Stream::new()?);
    let RaggedProblem { q, k, v, o, lse, options, arrays, .. } = problem;
    let mut call = Call { q, k, v, o, lse, options, arrays };
    (refusal.spoil)(&mut call);
    // SAFETY: the call is refused before anything is launched; that it is, is what this test checks.
    let answer = unsafe { raw::forward_with(&call.q, &call.k, &call.v, &call.o, call.lse, &call.options, &call.arrays, stream.raw()) };
    let named = match &answer {
        Err(Error::Invalid { field, .. }) => !refusal.unsupported && field == refusal.field,
        Err(Error::Unsupported { field, .. }) => refusal.unsupported && field == refusal.field,
        _ => false,
    };
    ensure!(named, "expected an error that names {}, got {answer:?}", refusal.field);
    stream.wait(|| "a call that was refused".to_string())?;
    problem.check_untouched()?;
    // The refusal leaves nothing behind: the right call works.
    problem.run_and_judge(&stream)
}
