//! A pretended shop: in a real one these functions call other services.

use std::io;

use serde::{Deserialize, Serialize};

/// What a customer ordered.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// Its number.
    pub id: String,
    /// The price, in cents.
    pub cents: u64,
}

/// The event that lets an order go out.
#[derive(Debug, Serialize, Deserialize)]
pub struct Approval {
    /// Who approved.
    pub by: String,
}

/// What remains of an order in the end.
#[derive(Debug, Serialize, Deserialize)]
pub struct Receipt {
    /// The number of the payment.
    pub payment: String,
    /// Who approved.
    pub approved_by: String,
    /// The number of the label.
    pub label: String,
    /// The number of the mail.
    pub mail: String,
}

/// Takes money.
pub mod gateway {
    use super::io;

    /// Charges a card and returns the number of the payment.
    ///
    /// # Errors
    ///
    /// A real gateway has many; this one has none.
    pub async fn charge(order: &str, cents: u64) -> io::Result<String> {
        println!("charging {cents} cents for {order}");
        Ok(format!("payment-of-{order}"))
    }
}

/// Prints labels.
pub mod label {
    use super::io;

    /// Prints the label of an order and returns its number.
    ///
    /// # Errors
    ///
    /// None here.
    pub async fn print(order: &str) -> io::Result<String> {
        println!("printing the label of {order}");
        Ok(format!("label-of-{order}"))
    }
}

/// Sends mail.
pub mod mail {
    use super::io;

    /// Mails the receipt of an order and returns the number of the mail.
    ///
    /// # Errors
    ///
    /// None here.
    pub async fn receipt(order: &str) -> io::Result<String> {
        println!("mailing the receipt of {order}");
        Ok(format!("mail-about-{order}"))
    }
}
