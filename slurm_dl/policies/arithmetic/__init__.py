"""What several policies reckon with: supply and demand, linear programs, matchings, auctions."""
