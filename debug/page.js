setInterval(function(){if(!document.hidden&&document.activeElement.tagName!=="INPUT"&&!/[?&]reload=off/.test(location.search))location.reload()},5000)
