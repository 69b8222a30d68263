//! Draws a terminal's screen as a PNG picture, with the font DejaVu Sans Mono of the machine. A
//! character has a cell of 9 by 18 pixels. Indexed colours from 16 on are drawn as the default
//! colour.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use anyhow::{Context, Result};
use fontdue::{Font, FontSettings};

type Rgb = [u8; 3];

/// Draws a screen into a PNG file. Fails if the fonts (package fonts-dejavu-core) are missing or
/// the file cannot be written.
pub fn draw(screen: &vt100::Screen, file: &Path) -> Result<()> {
    let fonts = Fonts::load()?;
    let (rows, columns) = screen.size();
    let (rows, columns) = (rows.get(), columns.get());
    let (width, height) = (usize::from(columns) * CELL.0, usize::from(rows) * CELL.1);
    let mut canvas = Canvas {
        width: width + 2 * MARGIN,
        pixels: vec![BACKGROUND; (width + 2 * MARGIN) * (height + 2 * MARGIN)],
    };
    for row in 0..rows {
        for column in 0..columns {
            let Some(cell) = screen.cell(row, column) else {
                continue;
            };
            let at = (
                MARGIN + usize::from(column) * CELL.0,
                MARGIN + usize::from(row) * CELL.1,
            );
            let (mut foreground, mut background) = (
                colour(cell.fgcolor(), FOREGROUND),
                colour(cell.bgcolor(), BACKGROUND),
            );
            if cell.inverse() {
                std::mem::swap(&mut foreground, &mut background);
            }
            if cell.dim() {
                foreground = blend(background, foreground, 150);
            }
            canvas.fill(at, background);
            for letter in cell.contents().chars().take(1) {
                canvas.draw_char(at, letter, fonts.of(cell.bold()), foreground);
            }
        }
    }
    if !screen.hide_cursor() {
        let (row, column) = screen.cursor_position();
        let at = (
            MARGIN + usize::from(column) * CELL.0,
            MARGIN + usize::from(row) * CELL.1,
        );
        canvas.fill(at, FOREGROUND);
    }
    canvas.write(file)
}

struct Fonts {
    plain: Font,
    bold: Font,
}

impl Fonts {
    fn load() -> Result<Fonts> {
        let load = |name: &str| -> Result<Font> {
            let path = format!("{FONT_FOLDER}/{name}.ttf");
            let bytes = std::fs::read(&path)
                .with_context(|| format!("no font at {path}; install fonts-dejavu-core"))?;
            Font::from_bytes(bytes, FontSettings::default()).map_err(anyhow::Error::msg)
        };
        Ok(Fonts {
            plain: load("DejaVuSansMono")?,
            bold: load("DejaVuSansMono-Bold")?,
        })
    }

    fn of(&self, bold: bool) -> &Font {
        if bold { &self.bold } else { &self.plain }
    }
}

struct Canvas {
    width: usize,
    pixels: Vec<Rgb>,
}

impl Canvas {
    fn fill(&mut self, at: (usize, usize), background: Rgb) {
        for y in at.1..at.1 + CELL.1 {
            self.pixels[y * self.width + at.0..][..CELL.0].fill(background);
        }
    }

    fn draw_char(&mut self, at: (usize, usize), letter: char, font: &Font, foreground: Rgb) {
        if let Some(eighths) = "▁▂▃▄▅▆▇█".chars().position(|step| step == letter) {
            // Block characters are drawn as rectangles, because the font's glyphs leave seams.
            let high = CELL.1 * (eighths + 1) / 8;
            for y in at.1 + CELL.1 - high..at.1 + CELL.1 {
                self.pixels[y * self.width + at.0..][..CELL.0].fill(foreground);
            }
            return;
        }
        let (size, coverage) = font.rasterize(letter, FONT_SIZE);
        for (number, covered) in coverage.iter().enumerate() {
            let (x, y) = (number % size.width, number / size.width);
            let left = i64::from(size.xmin) + (at.0 + x) as i64;
            let top = (at.1 + BASELINE + y) as i64 - size.height as i64 - i64::from(size.ymin);
            let place = usize::try_from(top * self.width as i64 + left);
            if let Some(pixel) = place.ok().and_then(|place| self.pixels.get_mut(place)) {
                *pixel = blend(*pixel, foreground, *covered);
            }
        }
    }

    fn write(&self, file: &Path) -> Result<()> {
        let what = || format!("cannot write {}", file.display());
        let out = BufWriter::new(File::create(file).with_context(what)?);
        let height = self.pixels.len() / self.width;
        let mut encoder =
            png::Encoder::new(out, u32::try_from(self.width)?, u32::try_from(height)?);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_compression(png::Compression::High);
        let mut writer = encoder.write_header().with_context(what)?;
        writer
            .write_image_data(self.pixels.as_flattened())
            .with_context(what)
    }
}

/// Blends two colours: `parts` of 255 of `over`, the rest of `under`.
fn blend(under: Rgb, over: Rgb, parts: u8) -> Rgb {
    let parts = u16::from(parts);
    std::array::from_fn(|n| {
        let sum = u16::from(over[n]) * parts + u16::from(under[n]) * (255 - parts);
        u8::try_from(sum / 255).unwrap_or(u8::MAX)
    })
}

fn colour(colour: vt100::Color, or: Rgb) -> Rgb {
    match colour {
        vt100::Color::Default => or,
        vt100::Color::Rgb(r, g, b) => [r, g, b],
        vt100::Color::Idx(number) => PALETTE.get(usize::from(number)).copied().unwrap_or(or),
    }
}

/// Width and height of a cell in pixels; the letter's size and baseline fit it.
const CELL: (usize, usize) = (9, 18);
const FONT_SIZE: f32 = 15.0;
const BASELINE: usize = 14;
const MARGIN: usize = 8;
const FOREGROUND: Rgb = [0xd8, 0xde, 0xe4];
const BACKGROUND: Rgb = [0x14, 0x1a, 0x21];
/// The sixteen indexed colours.
const PALETTE: [Rgb; 16] = [
    [0x14, 0x1a, 0x21],
    [0xe0, 0x5a, 0x5a],
    [0x6a, 0xc0, 0x7a],
    [0xe0, 0xb0, 0x50],
    [0x6a, 0xa8, 0xe8],
    [0xb0, 0x8a, 0xe0],
    [0x58, 0xc4, 0xc4],
    [0xd8, 0xde, 0xe4],
    [0x6b, 0x78, 0x85],
    [0xf0, 0x7a, 0x7a],
    [0x8a, 0xd8, 0x9a],
    [0xf0, 0xc8, 0x70],
    [0x8a, 0xc0, 0xf8],
    [0xc8, 0xa8, 0xf0],
    [0x78, 0xdc, 0xdc],
    [0xf4, 0xf6, 0xf8],
];
const FONT_FOLDER: &str = "/usr/share/fonts/truetype/dejavu";
