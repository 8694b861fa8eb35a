-- Read the logs of jobs behind an index. KEYS: none. ARGV: 1 how many entries at most, 2 how many bytes of pieces at
-- most, then per log: id, index. One entry is returned even if it is larger.
-- Returns per log a flat list: index of an entry's last piece, its JSON array ('' for a restart mark), the head of the
-- response that begins with it or '', and so on.
local most, most_bytes, answer = tonumber(ARGV[1]), tonumber(ARGV[2]), {}
for i = 3, #ARGV, 2 do
  local flat, bytes, last = {}, 0, ARGV[i + 1]
  repeat
    -- A few at a time: what is not returned costs little, even if the entries are large.
    local found = try('XRANGE', PIECES .. ARGV[i], '(' .. last .. '-0', '+', 'COUNT', 16)
    for _, entry in ipairs(found.err and {} or found) do
      local text = entry[2][2]
      bytes = bytes + #text
      if #flat > 0 and (#flat == 3 * most or bytes > most_bytes) then
        found = {}
        break
      end
      last = string.match(entry[1], '^%d+')
      flat[#flat + 1], flat[#flat + 2] = last, text
      flat[#flat + 1] = entry[2][3] == 'h' and entry[2][4] or ''
    end
  until #found < 16
  answer[#answer + 1] = flat
end
return answer
