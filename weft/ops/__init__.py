"""Operations: each one definition, from which every rule follows."""
