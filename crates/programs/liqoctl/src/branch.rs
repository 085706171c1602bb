//! Trees of text on the terminal.

use crate::terminal;

/// A line and the lines below it.
pub struct Branch {
    pub text: String,
    pub children: Vec<Branch>,
}

impl Branch {
    pub fn leaf(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            children: Vec::new(),
        }
    }

    /// Adds the line and the lines below it; `indent` is what the lines below it begin with.
    pub fn draw(&self, indent: &str, out: &mut String) {
        self.draw_within(terminal::columns(), indent, out);
    }

    fn draw_within(&self, columns: Option<usize>, indent: &str, out: &mut String) {
        let is_leaf = self.children.is_empty();
        let continued = format!("{indent}{}", if is_leaf { "  " } else { "│ " });
        self.write_text(columns, indent, &continued, out);
        for (index, child) in self.children.iter().enumerate() {
            let last = index + 1 == self.children.len();
            out.push_str(indent);
            out.push_str(if last { "└─ " } else { "├─ " });
            child.draw_within(
                columns,
                &format!("{indent}{}", if last { "   " } else { "│  " }),
                out,
            );
        }
    }

    /// Adds the line with this indent, and the lines below it two columns further right.
    pub fn draw_list(&self, indent: &str, out: &mut String) {
        self.draw_list_within(terminal::columns(), indent, out);
    }

    fn draw_list_within(&self, columns: Option<usize>, indent: &str, out: &mut String) {
        out.push_str(indent);
        self.write_text(columns, indent, &format!("{indent}    "), out);
        for child in &self.children {
            child.draw_list_within(columns, &format!("{indent}  "), out);
        }
    }

    /// Adds the text, which begins as far right as `indent` ends. What does not fit into the columns
    /// follows on lines that begin with `continued`.
    fn write_text(&self, columns: Option<usize>, indent: &str, continued: &str, out: &mut String) {
        let lines = match columns {
            Some(columns) => {
                let taken = indent.chars().count() + HANGING;
                terminal::wrap(&self.text, columns.saturating_sub(taken))
            }
            None => vec![self.text.clone()],
        };
        for (index, line) in lines.iter().enumerate() {
            if index > 0 {
                out.push_str(continued);
            }
            out.push_str(line);
            out.push('\n');
        }
    }
}

/// Columns by which continued lines are further right at most.
const HANGING: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Branch {
        let mut lends = Branch::leaf("lends to this cluster what it has");
        lends
            .children
            .push(Branch::leaf("two of its three nodes are ready"));
        Branch {
            text: "milan is a peer of this cluster".to_owned(),
            children: vec![lends, Branch::leaf("borrows nothing from this cluster")],
        }
    }

    #[test]
    fn what_does_not_fit_goes_on_below_its_own_line() {
        let mut drawn = String::new();
        tree().draw_within(Some(28), "", &mut drawn);
        assert_eq!(
            drawn,
            "\
milan is a peer of this
│ cluster
├─ lends to this cluster
│  │ what it has
│  └─ two of its three
│       nodes are ready
└─ borrows nothing from
     this cluster
"
        );
    }

    #[test]
    fn without_a_terminal_each_text_is_one_line() {
        let mut drawn = String::new();
        tree().draw("", &mut drawn);
        assert_eq!(drawn.lines().count(), 4);
        let mut listed = String::new();
        tree().draw_list_within(Some(28), "  ", &mut listed);
        assert_eq!(listed.lines().nth(1), Some("      this cluster"));
    }
}
