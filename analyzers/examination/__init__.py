# SPDX-License-Identifier: Apache-2.0
"""What `grademl doctor` looks at: a source, what is recorded in it, and whether recording works here."""
