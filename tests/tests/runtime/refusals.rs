//! What is refused, each with the error that names it, before anything is written.

use half::bf16;
use hopper_attention::{DType, Layout, raw};
use hopper_attention_tests::gpu::Stream;
use hopper_attention_tests::{Call, Case, DeviceProblem, DeviceTest, ElementType, Failure, Inputs, Placement, Refusal};

pub fn tests() -> Vec<DeviceTest> {
    refusals().into_iter().map(|refusal| DeviceTest::new(format!("refusals::{}", refusal.name), move || refused(&refusal))).collect()
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
        Refusal::invalid("dtypes_differ", "k.dtype", |call| call.k.dtype = DType::F16),
        Refusal::invalid("batches_differ", "k.batch", |call| call.k.layout.shape[0] = 1),
        Refusal::invalid("keys_and_values_differ", "v.seqlen", |call| call.v.layout.shape[1] -= 1),
        Refusal::invalid("output_of_another_length", "o.seqlen", |call| call.o.layout.shape[1] -= 1),
        Refusal::invalid("head_dims_differ", "k.head_dim", |call| call.k.layout.shape[3] = 32),
        Refusal::invalid("heads_no_multiple", "q.heads", |call| {
            call.k.layout.shape[2] = 2;
            call.v.layout.shape[2] = 2;
            call.q.layout.shape[2] = 3;
            call.o.layout.shape[2] = 3;
        }),
        Refusal::unsupported("head_dim_of_0", "q.head_dim", |call| head_dim(call, 0)),
        Refusal::unsupported("head_dim_of_4", "q.head_dim", |call| head_dim(call, 4)),
        Refusal::unsupported("head_dim_of_60", "q.head_dim", |call| head_dim(call, 60)),
        Refusal::unsupported("head_dim_of_264", "q.head_dim", |call| head_dim(call, 264)),
        Refusal::invalid("scale_of_0", "softmax_scale", |call| scale(call, 0.0)),
        Refusal::invalid("scale_below_0", "softmax_scale", |call| scale(call, -0.125)),
        Refusal::invalid("scale_of_nan", "softmax_scale", |call| scale(call, f32::NAN)),
        Refusal::invalid("scale_of_infinity", "softmax_scale", |call| scale(call, f32::INFINITY)),
        Refusal::invalid("scale_too_large_in_log2", "softmax_scale", |call| scale(call, f32::MAX)),
        Refusal::unsupported("address_off_by_one_element", "q.address", |call| call.q.address += 2),
        Refusal::unsupported("output_off_by_four_elements", "o.address", |call| call.o.address += 8),
        Refusal::invalid("null_address", "v.address", |call| call.v.address = 0),
        Refusal::unsupported("stride_no_multiple_of_8", "k.seqlen_stride", |call| call.k.layout.strides[1] += 4),
        Refusal::unsupported("stride_of_2_to_39", "v.batch_stride", |call| call.v.layout.strides[0] = 1 << 39),
        Refusal::unsupported("keys_repeated", "k.seqlen_stride", |call| call.k.layout.strides[1] = 0),
        Refusal::invalid("output_repeated", "o.batch_stride", |call| call.o.layout.strides[0] = 0),
        Refusal::invalid("output_rows_overlap", "o.strides", |call| call.o.layout.strides[2] = 56),
        Refusal::invalid("output_over_queries", "o", |call| call.o = call.q),
        Refusal::invalid("output_over_the_last_value", "o", |call| {
            let [batch, seqlen, heads, head_dim] = call.v.layout.shape;
            call.o.address = call.v.address + 2 * (batch * seqlen * heads * head_dim - head_dim) as u64;
        }),
        Refusal::invalid("lse_too_short", "lse.len", |call| call.lse = call.lse.map(|lse| raw::Lse { len: lse.len - 1, ..lse })),
        Refusal::invalid("lse_off_by_two_bytes", "lse.address", |call| {
            call.lse = call.lse.map(|lse| raw::Lse { address: lse.address + 2, ..lse });
        }),
        Refusal::invalid("lse_over_the_output", "lse", |call| call.lse = call.lse.map(|lse| raw::Lse { address: call.o.address, ..lse })),
        Refusal::unsupported("absurd_extents", "q.seqlen", |call| {
            call.q.layout = Layout::bshd([2, usize::MAX / 4, 2, 64]);
            call.o.layout = call.q.layout;
        }),
        Refusal::invalid("host_memory", "q.address", |call| {
            static HOST: [u64; 2] = [0; 2];
            call.options.check_addresses = true;
            call.q.address = HOST.as_ptr().addr() as u64 & !15;
        }),
        Refusal::invalid("values_beyond_their_allocation", "v.layout", |call| {
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
    refusal.check(problem.call, &stream)?;
    problem.check_untouched()?;
    // The refusal leaves nothing behind: the right call works.
    problem.run(&stream)?;
    problem.check_surroundings()
}
