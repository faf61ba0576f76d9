//! What is refused, each with the error that names it, before anything is written.

use half::bf16;
use hopper_attention::{DType, Error, Layout, raw};
use hopper_attention_tests::gpu::Stream;
use hopper_attention_tests::{Case, DeviceProblem, DeviceTest, ElementType, Failure, Inputs, Placement, ensure};

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
}

struct Refusal {
    name: &'static str,
    /// The field that the error must name.
    field: &'static str,
    /// Whether another implementation could do it: `Unsupported` instead of `Invalid`.
    unsupported: bool,
    spoil: fn(&mut Call),
}

fn invalid(name: &'static str, field: &'static str, spoil: fn(&mut Call)) -> Refusal {
    Refusal { name, field, unsupported: false, spoil }
}

fn unsupported(name: &'static str, field: &'static str, spoil: fn(&mut Call)) -> Refusal {
    Refusal { name, field, unsupported: true, spoil }
}

fn scale(call: &mut Call, scale: f32) {
    call.options.softmax_scale = Some(scale);
}

fn head_dim(call: &mut Call, head_dim: usize) {
    for tensor in [&mut call.q, &mut call.k, &mut call.v, &mut call.o] {
        tensor.layout.shape[3] = head_dim;
    }
}

fn refusals() -> Vec<Refusal> {
    vec![
        invalid("dtypes_differ", "k.dtype", |call| call.k.dtype = DType::F16),
        invalid("batches_differ", "k.batch", |call| call.k.layout.shape[0] = 1),
        invalid("keys_and_values_differ", "v.seqlen", |call| call.v.layout.shape[1] -= 1),
        invalid("output_of_another_length", "o.seqlen", |call| call.o.layout.shape[1] -= 1),
        invalid("head_dims_differ", "k.head_dim", |call| call.k.layout.shape[3] = 32),
        invalid("heads_no_multiple", "q.heads", |call| {
            call.k.layout.shape[2] = 2;
            call.v.layout.shape[2] = 2;
            call.q.layout.shape[2] = 3;
            call.o.layout.shape[2] = 3;
        }),
        unsupported("head_dim_of_0", "q.head_dim", |call| head_dim(call, 0)),
        unsupported("head_dim_of_4", "q.head_dim", |call| head_dim(call, 4)),
        unsupported("head_dim_of_60", "q.head_dim", |call| head_dim(call, 60)),
        unsupported("head_dim_of_264", "q.head_dim", |call| head_dim(call, 264)),
        invalid("scale_of_0", "softmax_scale", |call| scale(call, 0.0)),
        invalid("scale_below_0", "softmax_scale", |call| scale(call, -0.125)),
        invalid("scale_of_nan", "softmax_scale", |call| scale(call, f32::NAN)),
        invalid("scale_of_infinity", "softmax_scale", |call| scale(call, f32::INFINITY)),
        invalid("scale_too_large_in_log2", "softmax_scale", |call| scale(call, f32::MAX)),
        unsupported("address_off_by_one_element", "q.address", |call| call.q.address += 2),
        unsupported("output_off_by_four_elements", "o.address", |call| call.o.address += 8),
        invalid("null_address", "v.address", |call| call.v.address = 0),
        unsupported("stride_no_multiple_of_8", "k.seqlen_stride", |call| call.k.layout.strides[1] += 4),
        unsupported("stride_of_2_to_39", "v.batch_stride", |call| call.v.layout.strides[0] = 1 << 39),
        unsupported("keys_repeated", "k.seqlen_stride", |call| call.k.layout.strides[1] = 0),
        invalid("output_repeated", "o.batch_stride", |call| call.o.layout.strides[0] = 0),
        invalid("output_rows_overlap", "o.strides", |call| call.o.layout.strides[2] = 56),
        invalid("output_over_queries", "o", |call| call.o = call.q),
        invalid("output_over_the_last_value", "o", |call| {
            let [batch, seqlen, heads, head_dim] = call.v.layout.shape;
            call.o.address = call.v.address + 2 * (batch * seqlen * heads * head_dim - head_dim) as u64;
        }),
        invalid("lse_too_short", "lse.len", |call| call.lse = call.lse.map(|lse| raw::Lse { len: lse.len - 1, ..lse })),
        invalid("lse_off_by_two_bytes", "lse.address", |call| {
            call.lse = call.lse.map(|lse| raw::Lse { address: lse.address + 2, ..lse });
        }),
        invalid("lse_over_the_output", "lse", |call| call.lse = call.lse.map(|lse| raw::Lse { address: call.o.address, ..lse })),
        unsupported("absurd_extents", "q.seqlen", |call| {
            call.q.layout = Layout::bshd([2, usize::MAX / 4, 2, 64]);
            call.o.layout = call.q.layout;
        }),
        invalid("host_memory", "q.address", |call| {
            static HOST: [u64; 2] = [0; 2];
            call.options.check_addresses = true;
            call.q.address = HOST.as_ptr().addr() as u64 & !15;
        }),
        invalid("values_beyond_their_allocation", "v.layout", |call| {
            call.options.check_addresses = true;
            call.v.layout.strides[0] += 1 << 32;
        }),
    ]
}

fn refused(refusal: &Refusal) -> Result<(), Failure> {
    let case = Case::new(ElementType::Bf16, 64, 70, 90).heads(2, 4, 2).causal(true);
    // Gaps, so that a stride may shrink without leaving the memory.
    let case = Case { o: Placement { gaps: [64, 64, 0], ..Placement::BSHD }, ..case };
    let problem = DeviceProblem::<bf16>::new(&case, &Inputs::draw(&case))?;
    let stream = Stream::new()?;
    let right = Call { q: problem.q, k: problem.k, v: problem.v, o: problem.o, lse: problem.lse, options: problem.options };
    let mut call = right;
    (refusal.spoil)(&mut call);
    // SAFETY: the call is refused before anything is launched; that it is, is what this test checks.
    let answer = unsafe { raw::forward(&call.q, &call.k, &call.v, &call.o, call.lse, &call.options, stream.raw()) };
    let named = match &answer {
        Err(Error::Invalid { field, .. }) => !refusal.unsupported && field == refusal.field,
        Err(Error::Unsupported { field, .. }) => refusal.unsupported && field == refusal.field,
        _ => false,
    };
    ensure!(named, "expected an error that names {}, got {answer:?}", refusal.field);
    stream.wait(|| "a call that was refused".to_string())?;
    problem.check_untouched()?;
    // The refusal leaves nothing behind: the right call works.
    problem.run(&stream)?;
    problem.check_surroundings()
}
