//! A recording (benches/README.md, "The file") as an SVG chart: grouped bars over the sequence length, a panel for each head_dim and mask.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fmt::Write;

/// One measured cell, as far as the chart shows it.
#[derive(Clone, Debug, PartialEq)]
struct Cell {
    /// What distinguishes charts: element type and protocol.
    section: (String, String),
    head_dim: u64,
    causal: bool,
    seqlen: u64,
    name: String,
    /// Whether it belongs to the grid of sequence lengths; the others are listed by name.
    in_grid: bool,
    /// (contestant, TFLOP/s).
    figures: Vec<(String, f64)>,
}

/// Everything that the chart shows.
struct Recording {
    device: String,
    cells: Vec<Cell>,
    /// Contestants: ours first.
    names: Vec<String>,
    /// TFLOP/s of the matmul, by protocol.
    ceilings: Vec<(String, f64)>,
}

// Okabe and Ito's palette: told apart by colour-blind readers too. Ours takes the first.
const COLOURS: [&str; 7] = ["#d55e00", "#0072b2", "#009e73", "#56b4e9", "#e69f00", "#cc79a7", "#999999"];
const PANEL_WIDTH: f64 = 330.0;
const PANEL_HEIGHT: f64 = 190.0;
const MARGIN: f64 = 50.0;
const ROW_HEIGHT: f64 = 9.0;

/// No device comes near it, and a chart could not show it.
const MAX_TFLOPS: f64 = 1e5;

/// Draws a recording.
///
/// # Errors
/// Another format, no figure in it, or one that cannot be.
pub fn draw(document: &Value) -> Result<String> {
    let recording = read(document)?;
    let figures = recording.cells.iter().flat_map(|cell| &cell.figures).chain(&recording.ceilings);
    for (name, tflops) in figures {
        ensure!((0.0..=MAX_TFLOPS).contains(tflops), "{name} has {tflops:e} TFLOP/s, not from 0 to {MAX_TFLOPS:e}");
    }
    let highest = recording.cells.iter().flat_map(|cell| &cell.figures).map(|figure| figure.1);
    let top = highest.chain(recording.ceilings.iter().map(|ceiling| ceiling.1)).fold(1.0, f64::max);
    let top = (top / 100.0).ceil() * 100.0;
    let mut body = String::new();
    let mut y = 30.0;
    let mut sections: Vec<_> = recording.cells.iter().map(|cell| cell.section.clone()).collect();
    sections.sort();
    sections.dedup();
    for section in &sections {
        let cells: Vec<&Cell> = recording.cells.iter().filter(|cell| cell.section == *section).collect();
        let (dtype, protocol) = section;
        text(&mut body, MARGIN, y, "start", 15, &format!("{}, {dtype}, {protocol}: TFLOP/s by sequence length", recording.device));
        legend(&mut body, y + 20.0, &recording.names);
        let ceiling = recording.ceilings.iter().find(|(name, _)| name == protocol).map(|ceiling| ceiling.1);
        y = grid(&mut body, y + 40.0, &cells, &recording.names, top, ceiling);
        y = list(&mut body, y, &cells, &recording.names, top);
    }
    let columns = grid_columns(&recording.cells.iter().collect::<Vec<_>>()).len().max(2) as f64;
    let (width, height) = (columns * (PANEL_WIDTH + MARGIN) + MARGIN, y);
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    ))
}

fn read(document: &Value) -> Result<Recording> {
    let format = document["format"].as_str();
    ensure!(format == Some("hopper-attention-bench/1"), "the format is {format:?}, not hopper-attention-bench/1");
    let empty = Vec::new();
    let list = |value: &'static str| document[value].as_array().unwrap_or(&empty);
    let runs = list("runs");
    let device = runs.first().and_then(|run| run["device"].as_str()).unwrap_or("unknown device").to_owned();
    let mut ceilings: Vec<(String, f64)> = Vec::new();
    for result in runs.iter().filter_map(|run| run["matmul"].as_array()).flatten() {
        if let (Some(protocol), Some(tflops)) = (result["protocol"].as_str(), result["tflops"].as_f64()) {
            match ceilings.iter_mut().find(|(name, _)| name == protocol) {
                Some(ceiling) => ceiling.1 = ceiling.1.max(tflops),
                None => ceilings.push((protocol.to_owned(), tflops)),
            }
        }
    }
    let (mut names, mut peers) = (Vec::new(), Vec::new());
    let mut cells = Vec::new();
    for cell in list("cells") {
        let results = cell["results"].as_array().unwrap_or(&empty);
        for result in results.iter().filter(|result| result["tflops"].is_number()) {
            let group = if result["kind"] == "ours" { &mut names } else { &mut peers };
            let name = result["contestant"].as_str().context("a result without a contestant")?.to_owned();
            if result["kind"] != "ceiling" && !group.contains(&name) {
                group.push(name);
            }
        }
        cells.push(read_cell(cell, results)?);
    }
    names.append(&mut peers);
    ensure!(!names.is_empty(), "the recording holds no figure");
    Ok(Recording { device, cells, names, ceilings })
}

fn read_cell(cell: &Value, results: &[Value]) -> Result<Cell> {
    let word = |name: &str| cell[name].as_str().map(str::to_owned).with_context(|| format!("a cell without `{name}`: {cell}"));
    let number = |name: &str| cell[name].as_u64().with_context(|| format!("a cell without `{name}`: {cell}"));
    let (seqlen, heads, head_dim) = (number("seqlen_k")?, number("num_heads")?, number("head_dim")?);
    let name = word("cell")?;
    // A grid's cells are named by head_dim, mask, length and dtype; a further word asks for something else.
    let in_grid = name.split(',').count() == 4
        && number("seqlen_q")? == seqlen
        && number("num_heads_k")? == heads
        && word("layout")? == "bshd"
        && number("batch")?.checked_mul(seqlen) == Some(16384)
        && heads.checked_mul(head_dim) == Some(2048);
    let figures = results.iter().filter_map(|result| Some((result["contestant"].as_str()?.to_owned(), result["tflops"].as_f64()?)));
    Ok(Cell {
        section: (word("dtype")?, word("protocol")?),
        head_dim,
        causal: cell["causal"] == true,
        seqlen,
        name,
        in_grid,
        figures: figures.collect(),
    })
}

fn grid_columns(cells: &[&Cell]) -> Vec<u64> {
    let mut columns: Vec<u64> = cells.iter().filter(|cell| cell.in_grid).map(|cell| cell.head_dim).collect();
    columns.sort_unstable();
    columns.dedup();
    columns
}

/// Panels: a row for each mask, a column for each head_dim. Returns where they end.
fn grid(body: &mut String, y: f64, cells: &[&Cell], names: &[String], top: f64, ceiling: Option<f64>) -> f64 {
    let mut end = y;
    for (row, causal) in [false, true].into_iter().enumerate() {
        for (column, head_dim) in grid_columns(cells).into_iter().enumerate() {
            let wanted = |cell: &&&Cell| cell.in_grid && cell.causal == causal && cell.head_dim == head_dim;
            let mut panel: Vec<&Cell> = cells.iter().filter(wanted).copied().collect();
            if panel.is_empty() {
                continue;
            }
            panel.sort_by_key(|cell| cell.seqlen);
            let (x, y) = (MARGIN + column as f64 * (PANEL_WIDTH + MARGIN), y + row as f64 * (PANEL_HEIGHT + MARGIN));
            axes(body, x, y, top);
            text(body, x, y - 4.0, "start", 12, &format!("head_dim {head_dim}, {}", if causal { "causal" } else { "full" }));
            bars(body, x, y, &panel, names, top);
            if let Some(ceiling) = ceiling {
                let height = y + PANEL_HEIGHT * (1.0 - ceiling / top);
                line(body, (x, height), (x + PANEL_WIDTH, height), "#444444", " stroke-dasharray=\"4 3\"");
                text(body, x, height - 3.0, "start", 9, &format!("cuBLAS 8192\u{b3}: {ceiling:.0}"));
            }
            end = y + PANEL_HEIGHT + MARGIN;
        }
    }
    end
}

fn axes(body: &mut String, x: f64, y: f64, top: f64) {
    let height = |value: f64| y + PANEL_HEIGHT * (1.0 - value / top);
    let step = if top > 500.0 { 200.0 } else { 100.0 };
    let mut value = 0.0;
    while value <= top {
        line(body, (x, height(value)), (x + PANEL_WIDTH, height(value)), "#dddddd", "");
        text(body, x - 5.0, height(value) + 4.0, "end", 10, &format!("{value:.0}"));
        value += step;
    }
}

fn bars(body: &mut String, x: f64, y: f64, panel: &[&Cell], names: &[String], top: f64) {
    let group = PANEL_WIDTH / panel.len() as f64;
    let bar = group * 0.8 / names.len() as f64;
    for (place, cell) in panel.iter().enumerate() {
        let left = x + place as f64 * group + group * 0.1;
        text(body, left + group * 0.4, y + PANEL_HEIGHT + 14.0, "middle", 10, &length(cell.seqlen));
        for (index, name) in names.iter().enumerate() {
            let Some((_, value)) = cell.figures.iter().find(|(contestant, _)| contestant == name) else { continue };
            let height = PANEL_HEIGHT * value / top;
            let corner = (left + index as f64 * bar, y + PANEL_HEIGHT - height);
            rectangle(body, corner, (bar, height), index, &format!("{name}, {}: {value:.0}", cell.name));
        }
    }
}

/// The cells outside the grid: a bar for each contestant, to the right of the cell's name. Returns where they end.
fn list(body: &mut String, mut y: f64, cells: &[&Cell], names: &[String], top: f64) -> f64 {
    let label_width = 260.0;
    let bar_width = 2.0 * (PANEL_WIDTH + MARGIN) - label_width;
    for cell in cells.iter().filter(|cell| !cell.in_grid) {
        text(body, label_width, y + ROW_HEIGHT, "end", 10, &cell.name);
        for (index, name) in names.iter().enumerate() {
            let Some((_, value)) = cell.figures.iter().find(|(contestant, _)| contestant == name) else { continue };
            let width = (bar_width - 2.0 * MARGIN) * value / top;
            rectangle(body, (label_width + 8.0, y), (width, ROW_HEIGHT), index, &format!("{name}, {}: {value:.0}", cell.name));
            text(body, label_width + width + 12.0, y + ROW_HEIGHT - 1.0, "start", 9, &format!("{value:.0}"));
            y += ROW_HEIGHT + 1.0;
        }
        y += ROW_HEIGHT;
    }
    y + MARGIN / 2.0
}

fn legend(body: &mut String, y: f64, names: &[String]) {
    for (index, name) in names.iter().enumerate() {
        let x = MARGIN + index as f64 * 130.0;
        rectangle(body, (x, y - 9.0), (10.0, 10.0), index, name);
        text(body, x + 14.0, y, "start", 11, full_name(name));
    }
}

/// A contestant's name as readers know it; builds of this library keep their label.
fn full_name(contestant: &str) -> &str {
    match contestant {
        "ours" => "hopper-attention",
        "cudnn" => "cuDNN",
        "cudnn-fe" => "cuDNN's front end",
        "fa2" => "FlashAttention-2",
        "fa3" => "FlashAttention-3",
        label => label,
    }
}

/// `4k` for 4096.
fn length(seqlen: u64) -> String {
    if seqlen >= 1024 && seqlen.is_multiple_of(1024) { format!("{}k", seqlen / 1024) } else { seqlen.to_string() }
}

fn rectangle(body: &mut String, (x, y): (f64, f64), (width, height): (f64, f64), colour: usize, title: &str) {
    let colour = COLOURS[colour % COLOURS.len()];
    let size = format!("width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"");
    writeln!(body, "<rect x=\"{x:.1}\" y=\"{y:.1}\" {size}><title>{}</title></rect>", escaped(title)).expect("a String takes all");
}

fn line(body: &mut String, from: (f64, f64), to: (f64, f64), colour: &str, more: &str) {
    let ends = format!("x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"", from.0, from.1, to.0, to.1);
    writeln!(body, "<line {ends} stroke=\"{colour}\"{more}/>").expect("a String takes all");
}

fn text(body: &mut String, x: f64, y: f64, anchor: &str, size: u32, words: &str) {
    let place = format!("x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\"");
    writeln!(body, "<text {place}>{}</text>", escaped(words)).expect("a String takes all");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cell(name: &str, seqlen: u64, heads_k: u64, results: Value) -> Value {
        json!({"cell": name, "protocol": "burst", "run": 0, "batch": 16384 / seqlen, "num_heads": 16, "num_heads_k": heads_k,
               "seqlen_q": seqlen, "seqlen_k": seqlen, "head_dim": 128, "causal": false, "dtype": "bf16", "layout": "bshd",
               "flops": 1, "results": results})
    }

    fn document(cells: Vec<Value>) -> Value {
        let matmul = json!([{"protocol": "burst", "contestant": "matmul", "kind": "ceiling", "tflops": 713.0}]);
        json!({"format": "hopper-attention-bench/1", "runs": [{"device": "NVIDIA H200", "matmul": matmul}], "cells": cells})
    }

    #[test]
    fn grid_and_list() {
        let results = json!([{"contestant": "fa2", "kind": "peer", "tflops": 300.0}, {"contestant": "ours<1>", "kind": "ours", "tflops": 650.0},
                             {"contestant": "fa3", "kind": "peer", "error": "not offered"}]);
        let document = document(vec![
            cell("d128,full,4k,bf16", 4096, 16, results.clone()),
            cell("d128,full,4k,bf16,kv8", 4096, 8, results.clone()),
            cell("d128,full,4k,bf16,cap30", 4096, 16, results),
        ]);
        let recording = read(&document).unwrap();
        assert_eq!(recording.names, ["ours<1>", "fa2"]);
        assert_eq!(recording.cells.iter().map(|cell| cell.in_grid).collect::<Vec<_>>(), [true, false, false]);
        let svg = draw(&document).unwrap();
        for part in ["head_dim 128, full", "ours&lt;1&gt;, d128,full,4k,bf16: 650", "d128,full,4k,bf16,kv8</text>", ": 713<", ">4k<"] {
            assert!(svg.contains(part), "{part} is not in {svg}");
        }
        assert!(!svg.contains("fa3") && !svg.contains("NaN"));
    }

    #[test]
    fn refuses_other_files() {
        assert!(draw(&json!({})).unwrap_err().to_string().contains("format"));
        assert!(draw(&document(Vec::new())).unwrap_err().to_string().contains("no figure"));
        let error = draw(&document(vec![json!({"cell": "d128"})])).unwrap_err();
        assert!(error.to_string().contains("seqlen_k"), "{error}");
        for tflops in [-1.0, 1e6, 1e308] {
            let results = json!([{"contestant": "ours", "kind": "ours", "tflops": tflops}]);
            let error = draw(&document(vec![cell("d128,full,4k,bf16", 4096, 16, results)])).unwrap_err();
            assert!(error.to_string().contains("ours has "), "{error}");
        }
    }

    #[test]
    fn numbers_of_any_size_are_outside_the_grid() {
        let results = json!([{"contestant": "ours", "kind": "ours", "tflops": 600.0}]);
        for fields in [&["batch"][..], &["num_heads", "num_heads_k"], &["head_dim"], &["seqlen_q", "seqlen_k"]] {
            let mut cell = cell("d128,full,4k,bf16", 4096, 16, results.clone());
            fields.iter().for_each(|&field| cell[field] = u64::MAX.into());
            let document = document(vec![cell]);
            assert!(!read(&document).unwrap().cells[0].in_grid, "{fields:?}");
            draw(&document).unwrap();
        }
    }
}
