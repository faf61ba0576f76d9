//! The tensors of cust: the same results as the raw layer, and what only they can refuse.

use cust::memory::{CopyDestination, DeviceBuffer};
use cust::stream::{Stream, StreamFlags};
use hopper_attention::{Attention, Dim, Element, Error, Layout, Tensor, TensorView, TensorViewMut};
use hopper_attention_tests::{
    Case, DeviceTest, ElementType, Failure, Inputs, Output, Placement, Profile, TestElement, check_output, ensure, with_element,
};

pub fn tests() -> Vec<DeviceTest> {
    let mut tests = vec![
        DeviceTest::new("safe_api::slices_of_a_packed_qkv", packed),
        DeviceTest::new("safe_api::broadcast_views", broadcast),
        DeviceTest::new("safe_api::refusals", refusals),
        DeviceTest::new("safe_api::combine", combine),
    ];
    for dtype in ElementType::ALL {
        for causal in [false, true] {
            let name = format!("safe_api::owned_tensors_{}_{}", dtype.name(), if causal { "causal" } else { "full" });
            tests.push(DeviceTest::new(name, move || owned(dtype, causal)));
        }
        tests.push(DeviceTest::new(format!("safe_api::into_views_on_a_stream_{}", dtype.name()), move || into_views(dtype)));
    }
    tests
}

fn failed(error: cust::error::CudaError) -> Failure {
    Failure(format!("a call of cust: {error}"))
}

fn lse_of(buffer: &DeviceBuffer<f32>) -> Result<Vec<f32>, Failure> {
    let mut lse = vec![f32::NAN; buffer.len()];
    buffer.copy_to(&mut lse).map_err(failed)?;
    Ok(lse)
}

fn case(dtype: ElementType) -> Case {
    let (seqlen_q, seqlen_k) = Profile::get().pick((230, 310), (40, 70));
    Case::new(dtype, 72, seqlen_q, seqlen_k).heads(2, 6, 2)
}

/// Keys in three chunks, merged, are like all keys at once; what cannot be merged is refused.
fn combine() -> Result<(), Failure> {
    let case = case(ElementType::F16);
    let inputs = Inputs::<half::f16>::draw(&case);
    let q = Tensor::from_slice(&inputs.q, Layout::bshd(case.q_shape()))?;
    let k = Tensor::from_slice(&inputs.k, Layout::bshd(case.k_shape()))?;
    let v = Tensor::from_slice(&inputs.v, Layout::bshd(case.k_shape()))?;
    let whole = Attention::new().forward(&q, &k, &v)?;
    let mut parts = Vec::new();
    for keys in [0..1, 1..50, 50..case.seqlen_k] {
        let (k, v) = (k.view().slice(Dim::Seqlen, keys.clone())?, v.view().slice(Dim::Seqlen, keys)?);
        parts.push(Attention::new().forward(&q, k, v)?);
    }
    let merged = hopper_attention::Output::combine(&parts.iter().collect::<Vec<_>>())?;
    for (merged, whole) in merged.o.to_vec()?.iter().zip(whole.o.to_vec()?) {
        let (merged, whole) = (merged.to_f32(), whole.to_f32());
        ensure!((merged - whole).abs() <= 2e-3 + 2e-3 * whole.abs(), "merged is {merged}, at once {whole}");
    }
    for (merged, whole) in lse_of(&merged.lse)?.iter().zip(lse_of(&whole.lse)?) {
        ensure!((merged - whole).abs() <= 1e-5 * whole.abs().max(1.0), "merged the LSE is {merged}, at once {whole}");
    }
    let other = Attention::new().forward(q.view().slice(Dim::Seqlen, 0..1)?, &k, &v)?;
    for (parts, field) in [(vec![], "parts"), (vec![&whole, &other], "parts[1].o.shape")] {
        let outcome = hopper_attention::Output::combine(&parts);
        ensure!(matches!(&outcome, Err(Error::Invalid { field: found, .. }) if found == field), "not refused for {field}: {outcome:?}");
    }
    Ok(())
}

fn owned(dtype: ElementType, causal: bool) -> Result<(), Failure> {
    with_element!(dtype, T => owned_of::<T>(&case(dtype).causal(causal)))
}

fn owned_of<T: TestElement + Element>(case: &Case) -> Result<(), Failure> {
    let inputs = Inputs::<T>::draw(case);
    let q = Tensor::from_slice(&inputs.q, Layout::bshd(case.q_shape()))?;
    let k = Tensor::from_slice(&inputs.k, Layout::bshd(case.k_shape()))?;
    let v = Tensor::from_slice(&inputs.v, Layout::bshd(case.k_shape()))?;
    let attention = Attention::new().causal(case.causal);
    attention.prepare::<T>(case.head_dim)?;
    let output = attention.forward(&q, &k, &v)?;
    ensure!(output.o.shape() == case.q_shape(), "O has the shape {:?}", output.o.shape());
    let computed = Output { o: output.o.to_vec()?, lse: Some(lse_of(&output.lse)?) };
    check_output(case, &inputs, &computed)?;

    let scaled = Case { softmax_scale: Some(0.3), ..case.clone() };
    let output = attention.softmax_scale(0.3).forward(&q, &k, &v)?;
    check_output(&scaled, &inputs, &Output { o: output.o.to_vec()?, lse: Some(lse_of(&output.lse)?) })
}

fn into_views(dtype: ElementType) -> Result<(), Failure> {
    with_element!(dtype, T => into_views_of::<T>(&case(dtype).causal(true)))
}

/// The output is a slice of a larger tensor, in another order of dimensions than the inputs.
fn into_views_of<T: TestElement + Element>(case: &Case) -> Result<(), Failure> {
    let inputs = Inputs::<T>::draw(case);
    let q = Tensor::from_slice(&inputs.q, Layout::bshd(case.q_shape()))?;
    let k = Tensor::from_slice(&inputs.k, Layout::bshd(case.k_shape()))?;
    let v = Tensor::from_slice(&inputs.v, Layout::bshd(case.k_shape()))?;
    let [batch, seqlen, heads, head_dim] = case.q_shape();
    let mut lse = DeviceBuffer::<f32>::zeroed(batch * heads * seqlen).map_err(failed)?;
    // Waits for the default stream, on which the zeros of both are written.
    let mut larger = Tensor::<T>::zeroed(Layout::bhsd([batch, seqlen, heads + 3, head_dim]))?;
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None).map_err(failed)?;
    {
        let mut o = larger.view_mut().slice(Dim::Heads, 1..1 + heads)?;
        let attention = Attention::new().causal(case.causal);
        // SAFETY: all tensors live until the stream has been waited for, and nothing else touches them.
        unsafe { attention.forward_into(&q, &k, &v, &mut o, Some(&mut lse), &stream)? };
        stream.synchronize().map_err(failed)?;
    }
    let (mut o, whole) = (Vec::new(), larger.to_vec()?);
    for position in whole.chunks_exact((heads + 3) * head_dim) {
        let (before, rest) = position.split_at(head_dim);
        let (own, behind) = rest.split_at(heads * head_dim);
        ensure!(before.iter().chain(behind).all(|x| x.to_f32() == 0.0), "heads beside the slice were written to");
        o.extend_from_slice(own);
    }
    check_output(case, &inputs, &Output { o, lse: Some(lse_of(&lse)?) })
}

fn packed() -> Result<(), Failure> {
    type T = half::bf16;
    let case = Case { packed: true, ..Case::new(ElementType::Bf16, 64, 100, 100).heads(2, 4, 2) };
    let inputs = Inputs::<T>::draw(&case);
    let heads = [(&inputs.q, 4), (&inputs.k, 2), (&inputs.v, 2)];
    let mut qkv = Vec::new();
    for row in 0..200 {
        heads.iter().for_each(|&(data, heads)| qkv.extend_from_slice(&data[row * heads * 64..(row + 1) * heads * 64]));
    }
    let packed = Tensor::from_slice(&qkv, Layout::bshd([2, 100, 8, 64]))?;
    let part = |range| packed.view().slice(Dim::Heads, range);
    let output = Attention::new().forward(part(0..4)?, part(4..6)?, part(6..8)?)?;
    check_output(&case, &inputs, &Output { o: output.o.to_vec()?, lse: Some(lse_of(&output.lse)?) })
}

fn broadcast() -> Result<(), Failure> {
    type T = half::f16;
    let once = Placement { broadcast_batch: true, broadcast_heads: true, ..Placement::BSHD };
    let case = Case { k: once, v: once, ..Case::new(ElementType::F16, 128, 60, 130).heads(3, 4, 4) };
    let inputs = Inputs::<T>::draw(&case);
    let q = Tensor::from_slice(&inputs.q, Layout::bshd(case.q_shape()))?;
    let [_, seqlen_k, _, head_dim] = case.k_shape();
    let one = |data: &[T]| Tensor::from_slice(data, Layout::bshd([1, seqlen_k, 1, head_dim]));
    let (k, v) = (one(&inputs.k)?, one(&inputs.v)?);
    let all = |tensor: &'_ Tensor<T>| -> Result<_, Error> {
        let layout = tensor.view().broadcast(Dim::Batch, 3)?.broadcast(Dim::Heads, 4)?;
        Ok(*layout.layout())
    };
    let (k_layout, v_layout) = (all(&k)?, all(&v)?);
    let (k, v) = (TensorView::<T>::new(k.buffer(), k_layout)?, TensorView::<T>::new(v.buffer(), v_layout)?);
    let output = Attention::new().forward(&q, k, v)?;
    check_output(&case, &inputs, &Output { o: output.o.to_vec()?, lse: Some(lse_of(&output.lse)?) })
}

fn refusals() -> Result<(), Failure> {
    type T = half::bf16;
    let names =
        |error: &Error, name: &str| matches!(error, Error::Invalid { field, .. } | Error::Unsupported { field, .. } if field == name);
    let x = Tensor::<T>::zeroed(Layout::bshd([1, 10, 2, 64]))?;
    let short = DeviceBuffer::<u16>::zeroed(1279).map_err(failed)?;
    let view = TensorView::<T>::new(&short, *x.layout());
    ensure!(view.as_ref().is_err_and(|error| names(error, "layout")), "a view beyond its memory: {view:?}");
    let three_heads = Tensor::<T>::zeroed(Layout::bshd([1, 10, 3, 64]))?;
    let answer = Attention::new().forward(&three_heads, &x, &x);
    ensure!(answer.as_ref().is_err_and(|error| names(error, "q.heads")), "three heads over two: {answer:?}");
    let answer = Attention::new().softmax_scale(-1.0).forward(&x, &x, &x);
    ensure!(answer.as_ref().is_err_and(|error| names(error, "softmax_scale")), "a scale below 0: {answer:?}");
    let mut lse = DeviceBuffer::<f32>::zeroed(19).map_err(failed)?;
    let mut memory = DeviceBuffer::<u16>::zeroed(1280).map_err(failed)?;
    let mut o = TensorViewMut::<T>::new(&mut memory, *x.layout())?;
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None).map_err(failed)?;
    // SAFETY: the call is refused; all tensors outlive the stream's work.
    let answer = unsafe { Attention::new().forward_into(&x, &x, &x, &mut o, Some(&mut lse), &stream) };
    ensure!(answer.as_ref().is_err_and(|error| names(error, "lse.len")), "an LSE too short: {answer:?}");
    stream.synchronize().map_err(failed)
}
