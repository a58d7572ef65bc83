//! The state as text, for output that is not a terminal.

use vramtrace_reader::report::text::layout::{PLAIN, Table};
use vramtrace_reader::units::{count, gib, shorten};

use super::columns::Column;
use super::draw::NO_PROCESS;
use super::state::State;

pub fn text(state: &State) -> String {
    let mut out = String::new();
    if !state.cards.is_empty() {
        let mut cards = Table::new(0, "lrrrrrr");
        cards.head(&["card", "in use", "of", "util", "counted", "cap", "refused"]);
        for card in state.cards.values() {
            let cap = card.caps().map_or("-".into(), gib);
            let used = card.used().map_or("?".into(), gib);
            let util = card.utilization().map_or("-".into(), |percent| format!("{percent} %"));
            let (counted, refused) = (gib(card.counted()), count(card.refused()));
            cards.row([card.name(), used, card.total(), util, counted, cap, refused]);
        }
        out.push_str(&cards.render());
        out.push('\n');
    }
    if let Some(note) = &state.nvml_note {
        out.push_str(&format!("{note}: processes that are not traced are not listed\n\n"));
    }
    let rows = state.rows();
    if rows.is_empty() {
        return format!("{out}{NO_PROCESS}\n");
    }
    let columns = Column::ALL.into_iter().filter(|(column, _)| *column != Column::History);
    let (columns, heads): (Vec<Column>, Vec<&str>) = columns.unzip();
    let sides: String =
        columns.iter().map(|column| if column.is_number() { 'r' } else { 'l' }).collect();
    let mut table = Table::new(0, &sides);
    table.head(&heads);
    for row in rows {
        let cell = |column: &Column| (shorten(&column.cell(row), 60), PLAIN);
        table.cells(columns.iter().map(cell));
    }
    out + &table.render()
}
