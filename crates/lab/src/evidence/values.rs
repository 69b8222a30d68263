//! Shows JSON values as HTML ([`show`]): objects as lists of names and values, arrays of objects as
//! tables. No call fails.

use maud::{Markup, html};
use serde_json::{Map, Value};

use crate::experiment::figure;

/// A value as HTML.
pub(super) fn show(value: &Value) -> Markup {
    match value {
        Value::Null => html! { "–" },
        Value::Bool(true) => html! { "yes" },
        Value::Bool(false) => html! { "no" },
        Value::Number(number) => html! { (number_text(number)) },
        Value::String(text) => html! { (text) },
        Value::Array(values) => array(values),
        Value::Object(map) => object(map),
    }
}

fn number_text(number: &serde_json::Number) -> String {
    let text = match number.as_f64() {
        Some(value) if !number.is_i64() && !number.is_u64() => figure(value),
        _ => number.to_string(),
    };
    grouped(&text)
}

/// A number with a comma before each three digits of its whole part, from 10,000 on. Other text
/// stays as it is.
pub(super) fn grouped(text: &str) -> String {
    let sign = usize::from(text.starts_with('-'));
    let whole = text.find('.').unwrap_or(text.len());
    let digits = text.get(sign..whole).unwrap_or_default();
    if digits.len() < 5 || !digits.bytes().all(|one| one.is_ascii_digit()) {
        return text.to_owned();
    }
    let mut out = text[..sign].to_owned();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out + &text[whole..]
}

fn object(map: &Map<String, Value>) -> Markup {
    html! {
        dl {
            @for (name, value) in map {
                dt { (name) }
                dd { (show(value)) }
            }
        }
    }
}

fn array(values: &[Value]) -> Markup {
    if let Some(columns) = columns(values) {
        return html! {
            div.wide { table {
                thead { tr { @for column in &columns { th { (column) } } } }
                tbody {
                    @for row in values {
                        tr { @for column in &columns { td { (show(&row[column])) } } }
                    }
                }
            } }
        };
    }
    let shown = values.iter().take(MOST);
    html! {
        @for (at, value) in shown.enumerate() {
            @if at > 0 { ", " }
            (show(value))
        }
        @if values.len() > MOST { " … (" (values.len()) " values)" }
    }
}

/// The names of the members, if all values are objects with the same ones.
fn columns(values: &[Value]) -> Option<Vec<String>> {
    let names = |value: &Value| -> Option<Vec<String>> {
        Some(value.as_object()?.keys().cloned().collect())
    };
    let first = names(values.first()?)?;
    let same = values
        .iter()
        .all(|value| names(value).as_ref() == Some(&first));
    same.then_some(first)
}

/// So many values of an array are shown; the file of the run has all of them.
const MOST: usize = 24;

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn large_numbers_have_commas() {
        let cases = [
            ("1234", "1234"),
            ("12345", "12,345"),
            ("-34406400", "-34,406,400"),
            ("123456.5", "123,456.5"),
            ("≥", "≥"),
            ("NaN", "NaN"),
            ("1e300", "1e300"),
            ("", ""),
        ];
        for (text, shown) in cases {
            assert_eq!(grouped(text), shown);
        }
    }
}
