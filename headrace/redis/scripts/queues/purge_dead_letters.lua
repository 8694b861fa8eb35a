-- Delete dead letters. KEYS: the queue's. ARGV: 1 queue, then names of dead letters. Returns how many there were.
check_types(false)
local removed = 0
for i = 2, #ARGV do
  call('ZREM', KEYS[10], ARGV[i])
  removed = removed + call('UNLINK', keys.letters .. ARGV[1] .. ':' .. ARGV[i])
end
return removed
