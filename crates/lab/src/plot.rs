//! Draws line charts as SVG text without scripts ([`Chart::svg`]). No call fails.
//!
//! A [`Chart`] is a title, two axes, series, and three kinds of marks: a level (a horizontal line
//! with a label at its right end, such as a limit), a moment (a vertical line with a label at its
//! top, such as "netnice typed here") and a shaded range of x. Ticks are round numbers. No data is
//! drawn outside the frame: points beyond the range are drawn at its edge, so a chart can be
//! restricted to the range of interest.
//!
//! plotters 0.3 does not replace this module: its SVG has whole pixels only, no outline around
//! labels that are drawn over lines, and no name of the chart for screen readers.

use std::fmt::Write as _;

/// Colours of charts, chosen so that people with red-green colour blindness can distinguish them.
pub(crate) mod palette {
    /// Colour of text and frames.
    pub(crate) const INK: &str = "#1c2733";
    /// Colour of secondary text.
    pub(crate) const SOFT: &str = "#5b6b7b";
    /// Colour of grid lines.
    pub(crate) const GRID: &str = "#e4e9ee";
    /// Colour of secondary lines.
    pub(crate) const GREY: &str = "#a9b4bf";
    /// Blue, the usual colour of a single series.
    pub(crate) const BLUE: &str = "#1667c2";
    /// Orange, the third colour of [`SERIES`].
    pub(crate) const ORANGE: &str = "#d9730d";
    /// Green, the fourth colour of [`SERIES`].
    pub(crate) const GREEN: &str = "#17866a";
    /// Purple, the fifth colour of [`SERIES`].
    pub(crate) const PURPLE: &str = "#7d4bc0";
    /// Red, for the worse of two series.
    pub(crate) const RED: &str = "#c62f3d";
    /// Colours of many series, in this order.
    pub(crate) const SERIES: [&str; 6] = [INK, BLUE, ORANGE, GREEN, PURPLE, RED];
}

/// A named series of points, drawn as a line or as dots.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    name: String,
    colour: &'static str,
    points: Vec<(f64, f64)>,
    width: f64,
    dots: bool,
    filled: bool,
    dashed: bool,
}

impl Series {
    /// A line through `points`, which must be sorted by x.
    pub(crate) fn new(
        name: impl Into<String>,
        colour: &'static str,
        points: Vec<(f64, f64)>,
    ) -> Series {
        Series {
            name: name.into(),
            colour,
            points,
            width: 2.0,
            dots: false,
            filled: false,
            dashed: false,
        }
    }

    /// A line of a chart with many: the first six have a colour each, the next six the same ones
    /// with dashes, and so on.
    pub(crate) fn numbered(
        number: usize,
        name: impl Into<String>,
        points: Vec<(f64, f64)>,
    ) -> Series {
        let all = palette::SERIES;
        let series = Series::new(name, all[number % all.len()], points);
        match number / all.len() % 2 {
            0 => series,
            _ => series.dashed(),
        }
    }

    /// A line of dashes, for one that another may cover.
    pub(crate) fn dashed(mut self) -> Series {
        self.dashed = true;
        self
    }

    /// A thinner line, for secondary data.
    pub(crate) fn thin(mut self) -> Series {
        self.width = 1.0;
        self
    }

    /// A thicker line.
    pub(crate) fn thick(mut self) -> Series {
        self.width = 2.8;
        self
    }

    /// Dots instead of a line.
    pub(crate) fn dots(mut self) -> Series {
        self.dots = true;
        self
    }

    /// Fills the area under the line with a light colour.
    pub(crate) fn filled(mut self) -> Series {
        self.filled = true;
        self
    }
}

/// A line chart under construction.
#[derive(Debug, Clone)]
pub(crate) struct Chart {
    title: String,
    axes: (String, String),
    series: Vec<Series>,
    levels: Vec<(f64, String, &'static str)>,
    moments: Vec<(f64, String)>,
    shade: Option<(f64, f64)>,
    size: (f64, f64),
    x_range: Option<(f64, f64)>,
    y_range: Option<(f64, f64)>,
    x_names: Vec<(f64, String)>,
    logarithmic: bool,
    legend: bool,
    levels_at_left: bool,
}

impl Chart {
    /// An empty chart with labelled axes.
    pub(crate) fn new(
        title: impl Into<String>,
        x: impl Into<String>,
        y: impl Into<String>,
    ) -> Chart {
        Chart {
            title: title.into(),
            axes: (x.into(), y.into()),
            series: Vec::new(),
            levels: Vec::new(),
            moments: Vec::new(),
            shade: None,
            size: (760.0, 380.0),
            x_range: None,
            y_range: None,
            x_names: Vec::new(),
            logarithmic: false,
            legend: true,
            levels_at_left: false,
        }
    }

    /// Adds a series.
    pub(crate) fn with(mut self, series: Series) -> Chart {
        self.series.push(series);
        self
    }

    /// Adds a horizontal line with a label.
    pub(crate) fn level(mut self, y: f64, word: impl Into<String>) -> Chart {
        self.levels.push((y, word.into(), palette::SOFT));
        self
    }

    /// Adds a vertical line with a label.
    pub(crate) fn moment(mut self, x: f64, word: impl Into<String>) -> Chart {
        self.moments.push((x, word.into()));
        self
    }

    /// Shades a range of x.
    pub(crate) fn shade(mut self, from: f64, to: f64) -> Chart {
        self.shade = Some((from, to));
        self
    }

    /// Sets width and height in pixels; the default is 760 and 380.
    pub(crate) fn size(mut self, width: f64, height: f64) -> Chart {
        self.size = (width, height);
        self
    }

    /// Fixes the range of x.
    pub(crate) fn x_range(mut self, from: f64, to: f64) -> Chart {
        self.x_range = Some((from, to));
        self
    }

    /// Fixes the range of y.
    pub(crate) fn y_range(mut self, from: f64, to: f64) -> Chart {
        self.y_range = Some((from, to));
        self
    }

    /// Writes a name below a place of x. A chart with names has no numbers there.
    pub(crate) fn x_name(mut self, x: f64, name: impl Into<String>) -> Chart {
        self.x_names.push((x, name.into()));
        self
    }

    /// Puts the labels of levels at the left end, where they cover less of these series.
    pub(crate) fn levels_at_left(mut self) -> Chart {
        self.levels_at_left = true;
        self
    }

    /// Draws y on a logarithmic scale. The range of y must be fixed ([`Chart::y_range`]) and
    /// positive.
    pub(crate) fn logarithmic(mut self) -> Chart {
        self.logarithmic = true;
        self
    }

    /// Leaves the legend out.
    pub(crate) fn without_legend(mut self) -> Chart {
        self.legend = false;
        self
    }

    /// The chart as an SVG document.
    pub(crate) fn svg(&self) -> String {
        let frame = self.frame();
        let (width, height) = self.size;
        let mut out = String::new();
        let _ = write!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"{}\" \
             font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\" \
             font-size=\"12\">",
            escape(&self.title)
        );
        let _ = write!(
            out,
            "<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>"
        );
        self.labels(&mut out, &frame);
        self.grid(&mut out, &frame);
        for series in &self.series {
            draw_series(&mut out, &frame, series);
        }
        self.marks(&mut out, &frame);
        out.push_str("</svg>");
        out
    }

    fn frame(&self) -> Frame {
        let all = || self.series.iter().flat_map(|s| s.points.iter());
        let span = |values: Vec<f64>| {
            let low = values.iter().copied().fold(f64::INFINITY, f64::min);
            let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if low > high { (0.0, 1.0) } else { (low, high) }
        };
        // A range that begins near 0 is extended to 0.
        let from_zero = |(low, high): (f64, f64)| {
            (
                if low > 0.0 && low < high * 0.05 {
                    0.0
                } else {
                    low
                },
                high,
            )
        };
        let x = self
            .x_range
            .unwrap_or_else(|| from_zero(span(all().map(|p| p.0).collect())));
        let y = self.y_range.unwrap_or_else(|| {
            let mut values: Vec<f64> = all().map(|p| p.1).collect();
            values.extend(self.levels.iter().map(|l| l.0));
            (0.0, span(values).1 * 1.08)
        });
        let top = if self.title.is_empty() { 12.0 } else { 36.0 };
        let rows = self
            .legend_places()
            .last()
            .map_or(0.0, |place| place.1 + 1.0);
        Frame {
            left: LEFT,
            right: self.size.0 - MARGIN,
            top: top
                + if self.legend {
                    6.0 + LEGEND_ROW * rows.max(1.0)
                } else {
                    6.0
                },
            bottom: self.size.1 - 42.0,
            x: (x.0, if x.1 > x.0 { x.1 } else { x.0 + 1.0 }),
            y: (y.0, if y.1 > y.0 { y.1 } else { y.0 + 1.0 }),
            logarithmic: self.logarithmic,
        }
    }

    /// Where the entries of the legend begin, and in which of its rows.
    fn legend_places(&self) -> Vec<(f64, f64)> {
        let shown = self.series.iter().filter(|_| self.legend);
        let (mut x, mut row) = (LEFT, 0.0);
        let place = |series: &Series| {
            let wide = SWATCH + 5.0 + 6.9 * series.name.chars().count() as f64;
            if x > LEFT && x + wide > self.size.0 - MARGIN {
                (x, row) = (LEFT, row + 1.0);
            }
            let at = (x, row);
            x += wide + 18.0;
            at
        };
        shown.map(place).collect()
    }

    /// Title, legend, and axis labels.
    fn labels(&self, out: &mut String, f: &Frame) {
        if !self.title.is_empty() {
            let title = escape(&self.title);
            let _ = write!(
                out,
                "<text x=\"{}\" y=\"24\" font-size=\"15\" font-weight=\"600\" fill=\"{}\">{title}</text>",
                f.left,
                palette::INK
            );
        }
        let first = if self.title.is_empty() { 18.0 } else { 48.0 };
        for (series, (x, row)) in self.series.iter().zip(self.legend_places()) {
            let y = first + LEGEND_ROW * row;
            let dashes = dashes(series);
            let _ = write!(
                out,
                "<line x1=\"{x}\" x2=\"{}\" y1=\"{at}\" y2=\"{at}\" stroke=\"{}\" \
                 stroke-width=\"4\"{dashes}/><text x=\"{}\" y=\"{y}\" fill=\"{}\">{}</text>",
                x + SWATCH,
                series.colour,
                x + SWATCH + 5.0,
                palette::INK,
                escape(&series.name),
                at = y - 4.0,
            );
        }
        let _ = write!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"{soft}\">{}</text>\
             <text transform=\"translate(15 {}) rotate(-90)\" text-anchor=\"middle\" \
             fill=\"{soft}\">{}</text>",
            f.right,
            self.size.1 - 8.0,
            escape(&self.axes.0),
            (f.top + f.bottom) / 2.0,
            escape(&self.axes.1),
            soft = palette::SOFT
        );
    }

    fn grid(&self, out: &mut String, f: &Frame) {
        if let Some((from, to)) = self.shade {
            let (x0, x1) = (f.px(from), f.px(to));
            let _ = write!(
                out,
                "<rect x=\"{x0:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#f3f6fa\"/>",
                f.top,
                x1 - x0,
                f.bottom - f.top
            );
        }
        let marks = if f.logarithmic {
            decades(f.y)
        } else {
            ticks(f.y, (f.bottom - f.top) / 38.0)
        };
        for y in marks {
            let at = f.py(y);
            let _ = write!(
                out,
                "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"{}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"{}\">{}</text>",
                f.left,
                f.right,
                palette::GRID,
                f.left - 7.0,
                at + 4.0,
                palette::SOFT,
                number(y)
            );
        }
        let numbers = ticks(f.x, (f.right - f.left) / 70.0);
        let numbers = numbers.into_iter().map(|x| (x, number(x)));
        let marks: Vec<(f64, String)> = match self.x_names.is_empty() {
            true => numbers.collect(),
            false => self.x_names.clone(),
        };
        for (x, name) in marks {
            let at = f.px(x);
            let _ = write!(
                out,
                "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"{}\"/>\
                 <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"{}\">{}</text>",
                f.bottom,
                f.bottom + 5.0,
                palette::GREY,
                f.bottom + 18.0,
                palette::SOFT,
                escape(&name)
            );
        }
        let _ = write!(
            out,
            "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{b:.1}\" y2=\"{b:.1}\" stroke=\"{}\"/>",
            f.left,
            f.right,
            palette::GREY,
            b = f.bottom
        );
    }

    /// Levels and moments, drawn over the series so that their labels stay readable.
    fn marks(&self, out: &mut String, f: &Frame) {
        const HALO: &str = "paint-order=\"stroke\" stroke=\"#fff\" stroke-width=\"4\"";
        let (label, anchor) = match self.levels_at_left {
            true => (f.left + 4.0, "start"),
            false => (f.right - 4.0, "end"),
        };
        for (y, word, colour) in &self.levels {
            let at = f.py(*y);
            let _ = write!(
                out,
                "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"{colour}\" \
                 stroke-dasharray=\"5 4\"/><text x=\"{label:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" \
                 fill=\"{colour}\" {HALO}>{}</text>",
                f.left,
                f.right,
                at - 6.0,
                escape(word)
            );
        }
        let mut row = 0.0;
        let mut before = f64::NEG_INFINITY;
        // After all lines, so that the line of one moment does not cross the label of another.
        let mut labels = String::new();
        for (x, word) in &self.moments {
            let at = f.px(*x);
            // A label that would overlap the one before goes one row lower.
            row = if at - before < 170.0 { row + 1.0 } else { 0.0 };
            before = if word.is_empty() { before } else { at };
            let _ = write!(
                out,
                "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"{ink}\" \
                 stroke-dasharray=\"2 3\"/>",
                f.top,
                f.bottom,
                ink = palette::INK
            );
            let _ = write!(
                labels,
                "<text x=\"{:.1}\" y=\"{:.1}\" font-weight=\"600\" fill=\"{ink}\" {HALO}>{}</text>",
                at + 6.0,
                f.top + 13.0 + 15.0 * row,
                escape(word),
                ink = palette::INK
            );
        }
        out.push_str(&labels);
    }
}

/// The position of the data on the page.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    x: (f64, f64),
    y: (f64, f64),
    logarithmic: bool,
}

impl Frame {
    fn px(&self, x: f64) -> f64 {
        let part = (x - self.x.0) / (self.x.1 - self.x.0);
        self.left + part.clamp(0.0, 1.0) * (self.right - self.left)
    }

    fn py(&self, y: f64) -> f64 {
        let part = if self.logarithmic {
            let (low, high) = (self.y.0.ln(), self.y.1.ln());
            (y.max(f64::MIN_POSITIVE).ln() - low) / (high - low)
        } else {
            (y - self.y.0) / (self.y.1 - self.y.0)
        };
        self.bottom - part.clamp(0.0, 1.0) * (self.bottom - self.top)
    }
}

fn draw_series(out: &mut String, f: &Frame, series: &Series) {
    let colour = series.colour;
    if series.dots {
        // Single measurements are to be seen; many points are to show where they are dense.
        let (radius, opacity) = match series.points.len() {
            0..=FEW_POINTS => (4.0, 0.9),
            _ => (1.8, 0.55),
        };
        for (x, y) in &series.points {
            let _ = write!(
                out,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius}\" fill=\"{colour}\" \
                 fill-opacity=\"{opacity}\"/>",
                f.px(*x),
                f.py(*y)
            );
        }
        return;
    }
    let mut path = String::new();
    let pixels: Vec<_> = series
        .points
        .iter()
        .map(|(x, y)| (f.px(*x), f.py(*y)))
        .collect();
    for (x, y) in visible(&pixels) {
        let _ = write!(path, " {x:.1},{y:.1}");
    }
    if let (true, Some(first), Some(last)) =
        (series.filled, series.points.first(), series.points.last())
    {
        let _ = write!(
            out,
            "<polygon points=\"{:.1},{b:.1}{path} {:.1},{b:.1}\" fill=\"{colour}\" fill-opacity=\"0.10\"/>",
            f.px(first.0),
            f.px(last.0),
            b = f.bottom
        );
    }
    let _ = write!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{}\" \
         stroke-linejoin=\"round\" stroke-linecap=\"round\"{}/>",
        path.trim_start(),
        series.width,
        dashes(series)
    );
}

/// The attribute of a dashed line.
fn dashes(series: &Series) -> &'static str {
    match series.dashed {
        true => " stroke-dasharray=\"7 5\"",
        false => "",
    }
}

/// The points of a line that can be seen, in pixels: of many points within half a pixel of x, the
/// first, the highest, the lowest and the last.
fn visible(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let column = |point: &(f64, f64)| (point.0 * 2.0).floor() as i64;
    let mut seen = Vec::new();
    for group in points.chunk_by(|a, b| column(a) == column(b)) {
        let by_y = |a: &usize, b: &usize| group[*a].1.total_cmp(&group[*b].1);
        let all = 0..group.len();
        let [low, high] = [all.clone().min_by(by_y), all.max_by(by_y)];
        let mut kept: Vec<usize> = [low, high].into_iter().flatten().collect();
        kept.extend([0, group.len() - 1]);
        kept.sort_unstable();
        kept.dedup();
        seen.extend(kept.into_iter().map(|at| group[at]));
    }
    seen
}

/// Round numbers in a range, about `count` of them.
fn ticks((low, high): (f64, f64), count: f64) -> Vec<f64> {
    let rough = (high - low) / count.max(1.0);
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|m| m * power)
        .find(|s| *s >= rough * 0.999)
        .unwrap_or(10.0 * power);
    let first = (low / step).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last).map(|i| i as f64 * step).collect()
}

/// Powers of ten in a range.
fn decades((low, high): (f64, f64)) -> Vec<f64> {
    let first = (low.log10() - 1e-9).ceil() as i32;
    let last = (high.log10() + 1e-9).floor() as i32;
    (first..=last).map(|e| 10f64.powi(e)).collect()
}

/// A tick's label without trailing zeros.
fn number(value: f64) -> String {
    let text = format!("{:.3}", value + 0.0);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    text.to_owned()
}

/// Text escaped for XML: between tags, and in attributes in double quotes.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

/// The left edge of the frame, and the margin at its right, in pixels.
const LEFT: f64 = 58.0;
const MARGIN: f64 = 18.0;
/// The height of a row of the legend, and the width of a series' sample in it, in pixels.
const LEGEND_ROW: f64 = 18.0;
const SWATCH: f64 = 16.0;
/// Dots of a series with so many points are large.
const FEW_POINTS: usize = 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks((0.0, 40.0), 4.0), [0.0, 10.0, 20.0, 30.0, 40.0]);
        assert_eq!(
            ticks((0.0, 0.9), 5.0),
            [0.0, 0.2, 0.4, 0.6000000000000001, 0.8]
        );
        assert_eq!(ticks((3.0, 3.4), 1.0), [3.0]);
        assert_eq!(decades((0.05, 1000.0)), [0.1, 1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(
            (number(0.6000000000000001), number(20.0)),
            ("0.6".into(), "20".into())
        );
    }

    #[test]
    fn a_chart_is_well_formed_and_stays_in_its_frame() {
        let chart = Chart::new("a < b & \"c\"", "s", "Mbit/s")
            .with(Series::new("one", palette::BLUE, vec![(0.0, 0.0), (1.0, 500.0)]).filled())
            .with(Series::new("two", palette::RED, vec![(0.5, -7.0)]).dots())
            .y_range(0.0, 100.0)
            .level(50.0, "limit")
            .moment(0.5, "now");
        let svg = chart.svg();
        assert!(svg.contains("a &lt; b &amp; &quot;c&quot;") && !svg.contains("a < b"));
        assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
        // 500 is drawn at the top of the frame, -7 at its bottom.
        assert!(
            svg.contains("742.0,60.0") && svg.contains("cy=\"338.0\""),
            "{svg}"
        );
    }

    #[test]
    fn of_many_points_those_are_drawn_that_can_be_seen() {
        assert_eq!(visible(&[]), []);
        assert_eq!(visible(&[(1.0, 5.0), (2.0, 5.0)]), [(1.0, 5.0), (2.0, 5.0)]);
        let crowd = [
            (1.1, 5.0),
            (1.11, 9.0),
            (1.12, 7.0),
            (1.13, 1.0),
            (1.14, 6.0),
        ];
        let drawn = [(1.1, 5.0), (1.11, 9.0), (1.13, 1.0), (1.14, 6.0)];
        assert_eq!(
            visible(&[&crowd[..], &[(2.0, 0.0)]].concat()),
            [&drawn[..], &[(2.0, 0.0)]].concat()
        );
    }

    #[test]
    fn twelve_lines_differ_and_their_legend_has_rows() {
        let line =
            |number| Series::numbered(number, format!("connection {number}"), vec![(0.0, 1.0)]);
        let chart = (0..12)
            .map(line)
            .fold(Chart::new("many", "s", "bit/s"), Chart::with);
        let places = chart.legend_places();
        assert_eq!(places.last().map(|place| place.1), Some(2.0));
        assert!(places.iter().all(|(x, _)| *x < 700.0), "{places:?}");
        let svg = chart.svg();
        // Six lines and their samples.
        assert_eq!(svg.matches("stroke-dasharray=\"7 5\"").count(), 12);
        let named = Chart::new("", "x", "y")
            .x_name(1.0, "s1 & s2")
            .levels_at_left();
        assert!(named.svg().contains(">s1 &amp; s2<"));
    }

    #[test]
    fn an_empty_chart_is_drawn_too() {
        assert!(Chart::new("", "x", "y").svg().ends_with("</svg>"));
    }
}
