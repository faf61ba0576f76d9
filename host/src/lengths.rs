//! Whether the lengths of sequences, which only the device knows, are right.

use hopper_attention_driver::CUstream;

use crate::Error;
use crate::error::{check as check_call, driver};
use crate::plan::{Sequences, array_region};
use crate::raw::{Array, Arrays, Tensor4};

/// See [`crate::raw::check_lengths`].
///
/// # Safety
///
/// As [`crate::raw::check_lengths`].
pub(crate) unsafe fn check(q: &Tensor4, k: &Tensor4, arrays: &Arrays, stream: CUstream) -> Result<(), Error> {
    let sequences = Sequences::of(q, k, arrays)?;
    let sides = [
        (["cu_seqlens_q", "seqused_q"], arrays.cu_seqlens_q, arrays.seqused_q, sequences.q.rows),
        (["cu_seqlens_k", "seqused_k"], arrays.cu_seqlens_k, arrays.seqused_k, sequences.k.rows),
    ];
    for (names @ [cu_seqlens_name, seqused_name], cu_seqlens, seqused, rows) in sides {
        // SAFETY: passed on to the caller.
        let read = |name, array: Option<Array>| array.map(|array| unsafe { read(name, array, stream) }).transpose();
        let (cu_seqlens, seqused) = (read(cu_seqlens_name, cu_seqlens)?, read(seqused_name, seqused)?);
        check_side(names, cu_seqlens.as_deref(), seqused.as_deref(), rows)?;
    }
    Ok(())
}

/// Copies an array to the host, and waits.
///
/// # Safety
///
/// As [`crate::raw::check_lengths`].
unsafe fn read(name: &str, array: Array, stream: CUstream) -> Result<Vec<i32>, Error> {
    if array.len == 0 {
        return Ok(Vec::new());
    }
    array_region(name, array)?;
    let mut values = Vec::new();
    values.try_reserve_exact(array.len).map_err(|_| Error::invalid(format!("{name}.len"), array.len, "small enough for memory"))?;
    values.resize(array.len, 0i32);
    let driver = driver()?;
    // SAFETY: the vector has room for as many bytes, and lives until the wait below; for the array and the stream the caller answers.
    check_call("cuMemcpyDtoHAsync_v2", unsafe {
        driver.cuMemcpyDtoHAsync_v2(values.as_mut_ptr().cast(), array.address, size_of_val(values.as_slice()), stream)
    })?;
    // SAFETY: the caller answers for the stream.
    check_call("cuStreamSynchronize", unsafe { driver.cuStreamSynchronize(stream) })?;
    Ok(values)
}

/// Checks the lengths of one side, whose tensor has `rows` rows, in all or in each batch entry.
fn check_side(
    [cu_seqlens_name, seqused_name]: [&str; 2],
    cu_seqlens: Option<&[i32]>,
    seqused: Option<&[i32]>,
    rows: usize,
) -> Result<(), Error> {
    for (i, &start) in cu_seqlens.unwrap_or_default().iter().enumerate() {
        let refuse = |requirement: String| Err(Error::invalid(format!("{cu_seqlens_name}[{i}]"), start, requirement));
        let previous = if i == 0 { 0 } else { cu_seqlens.map_or(0, |starts| starts[i - 1]) };
        if start < 0 {
            return refuse("at least 0".into());
        }
        if start < previous {
            return refuse(format!("at least {previous}, which {cu_seqlens_name}[{}] is", i - 1));
        }
        if start as usize > rows {
            return refuse(format!("at most {rows}, as the tensor has so many rows"));
        }
    }
    for (i, &used) in seqused.unwrap_or_default().iter().enumerate() {
        // No overflow: the starts ascend from 0 or more, as was checked above.
        let length = cu_seqlens.map_or(rows, |starts| (starts[i + 1] - starts[i]) as usize);
        if used < 0 || used as usize > length {
            return Err(Error::invalid(format!("{seqused_name}[{i}]"), used, format!("from 0 to {length}, the rows of its sequence")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(cu_seqlens: Option<&[i32]>, seqused: Option<&[i32]>) -> Result<(), String> {
        check_side(["cu_seqlens_q", "seqused_q"], cu_seqlens, seqused, 100).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_right() {
        assert_eq!(check(None, None), Ok(()));
        assert_eq!(check(Some(&[0]), Some(&[])), Ok(()));
        // Empty sequences anywhere; rows before the first and behind the last.
        assert_eq!(check(Some(&[0, 0, 7, 7, 100]), Some(&[0, 7, 0, 93])), Ok(()));
        assert_eq!(check(Some(&[5, 50, 99]), Some(&[0, 1])), Ok(()));
        assert_eq!(check(None, Some(&[0, 100, 1])), Ok(()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let refused = |cu_seqlens: Option<&[i32]>, seqused: Option<&[i32]>, message: &str| {
            assert_eq!(check(cu_seqlens, seqused), Err(message.to_owned()));
        };
        refused(Some(&[-1, 7]), None, "cu_seqlens_q[0] is -1, but must be at least 0");
        refused(Some(&[0, i32::MIN]), None, "cu_seqlens_q[1] is -2147483648, but must be at least 0");
        refused(Some(&[0, 7, 6]), None, "cu_seqlens_q[2] is 6, but must be at least 7, which cu_seqlens_q[1] is");
        refused(Some(&[0, 101, 7]), None, "cu_seqlens_q[1] is 101, but must be at most 100, as the tensor has so many rows");
        refused(Some(&[0, 7, 9]), Some(&[7, 3]), "seqused_q[1] is 3, but must be from 0 to 2, the rows of its sequence");
        refused(None, Some(&[100, -1]), "seqused_q[1] is -1, but must be from 0 to 100, the rows of its sequence");
        refused(None, Some(&[101]), "seqused_q[0] is 101, but must be from 0 to 100, the rows of its sequence");
    }
}
